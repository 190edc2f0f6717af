"""What repeats can tell: in simulated comparisons and reports, and as it is said beforehand."""

from __future__ import annotations

import math
import re

import numpy as np
from support.metrics_parts import printed
from support.simulated_rows import in_turns, simulated_rows

from efficientbench.metrics.analysis.compare import compare
from efficientbench.metrics.analysis.needed import what_repeats_tell
from efficientbench.metrics.analysis.noise import IdenticalRuns
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.analysis.rivals import QUESTIONS, Rivals
from efficientbench.metrics.formulas.ratio import MIN_REPEATS, repeats_to_tell
from efficientbench.metrics.report.comparison import print_comparison

SPREAD, FASTER = 0.01, 0.05


def rows_of(rows: int, chance: np.random.Generator) -> list[Group]:
    """Return rows of three repeats, the first 5 % faster than the others."""
    order = in_turns(rows, MIN_REPEATS, chance)
    logs = {name: chance.normal(0, SPREAD, len(order)) for name in QUESTIONS}
    logs["tokens_per_s"] += np.where(np.array(order) == 0, math.log(1 + FASTER), 0.0)
    return simulated_rows(order, logs, timed=True)


def test_three_repeats_find_a_model_that_is_5_percent_faster() -> None:
    """Comparisons found it in 43 % of cases, and reports on four rows in 7 %."""
    chance, sets = np.random.default_rng(4), 60
    compared = [compare(*rows_of(2, chance)).ratios for _ in range(sets)]
    found = sum(ratio.metric == "tokens_per_s" and bool(ratio.measurable) for ratios in compared for ratio in ratios)
    named = 0
    for _ in range(sets):
        rows = rows_of(4, chance)
        standing = Rivals(rows, IdenticalRuns(rows)).standing("tokens_per_s")
        named += standing.best == 0 and len(standing.worse) == 3
    # 97 % and 90 % of many sets; of 60, fewer than these would have a chance of 1 in 10,000.
    assert found >= 52
    assert named >= 43


def test_a_comparison_says_how_many_repeats_would_tell_what_it_does_not() -> None:
    alike = rows_of(3, np.random.default_rng(5))[1:]
    text = " ".join(printed(print_comparison, compare(*alike), width=400).split())
    assert "all figures together: 4.7% for tokens/s, all for the others once that differs (Holm)." in text
    told = {ratio.metric: ratio for ratio in compare(*alike).ratios}["tokens_per_s"]
    assert told.spread is not None
    runs = repeats_to_tell(told.ratio, told.spread)
    assert f"in 80% of cases: tokens/s {told.change} takes {runs}; AMU, GB " in text


def test_what_repeats_tell_follows_from_the_spread_of_records_at_hand() -> None:
    rows = rows_of(2, np.random.default_rng(5))
    records = [run for row in rows for run in row.records]
    [line] = what_repeats_tell(records, 3, 2, "output")
    logs = [np.log(row.values("tokens_per_s")) for row in rows]
    spread = math.sqrt(np.mean([each.var(ddof=1) for each in logs]))
    assert line.startswith("3 repeats tell on Trace 9000, in 80% of cases: tokens/s ")
    assert f"(spread {spread:.2%})" in line
    told, takes = re.findall(r"tokens/s ([\d.]+)%, 2% takes (\d+)", line)[0]
    [more] = what_repeats_tell(records, int(takes), 2, "output")
    assert float(told) > 2 >= float(re.findall(r"tokens/s ([\d.]+)%", more)[0])
    assert "tokens/s nothing" in what_repeats_tell(records, 2, 2, "output")[0]
    assert what_repeats_tell(records[:2], 3, 2, "output") == [
        "what 3 repeats tell is not known: output has no run with 3 repeats"
    ]
