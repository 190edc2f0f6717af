"""The search of a learning rate, and how rates are carried to larger sizes."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from efficientbench.basics.errors import MetricsError
from efficientbench.studies.rates import SLOPE, carried, first_rates, further_rate, rate_at, vertex

Losses = dict[float, float]


def _parabola(rate: float) -> float:
    return 3.0 + 0.02 * math.log(rate / 5e-3) ** 2


def test_a_search_moves_until_the_lowest_lies_between_two_and_ends_at_the_vertex() -> None:
    losses = {rate: _parabola(rate) for rate in first_rates(1e-3)}
    tried = []
    while (rate := further_rate("gqa_50M", losses)) is not None:
        losses[rate] = _parabola(rate)
        tried.append(rate)
    assert tried == pytest.approx([4e-3, 8e-3])
    assert vertex(losses) == pytest.approx(5e-3, rel=1e-9)


def test_a_search_that_ends_at_an_end_is_refused_with_its_losses() -> None:
    losses = {rate: -math.log(rate) for rate in (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)}
    with pytest.raises(MetricsError) as raised:
        further_rate("mla_50M", losses)
    assert "mla_50M: the lowest of 6 losses lies at the last rate, 0.032 (6.91 6.21 5.52 4.83 4.14 3.44)" in str(
        raised.value
    )


def test_beside_a_diverged_run_the_lowest_rate_itself_is_taken() -> None:
    losses = {1e-3: 3.1, 2e-3: 3.0, 4e-3: math.inf}
    assert further_rate("gqa_50M", losses) is None
    assert vertex(losses) == 2e-3


def test_one_slope_serves_all_variants_and_follows_the_rates_more_the_further_they_reach() -> None:
    sizes = (50e6, 5e9)
    rates = {name: {n: math.exp(c - 0.4 * math.log(n)) for n in sizes} for name, c in (("gqa", 2.0), ("mla", 2.5))}
    gamma, found = carried(rates)
    assert gamma == pytest.approx(-0.4, abs=0.01)
    assert found["mla"] - found["gqa"] == pytest.approx(0.5)
    assert rate_at(gamma, found["gqa"], 50e6) == pytest.approx(rates["gqa"][50e6], rel=0.05)
    near, _ = carried({"gqa": {50e6: 1e-3, 51e6: 2e-3}})
    assert near == pytest.approx(SLOPE, abs=0.02)


def _search(losses: Losses, start: float) -> float | None:
    """Return the rate that a search on a published grid finds; None where it leaves the grid, or is refused."""
    rates = sorted(losses)
    tried: Losses = {}
    wanted = list(first_rates(start))
    while wanted:
        rate = wanted.pop()
        nearest = min(rates, key=lambda each: abs(math.log(each / rate)))
        if abs(math.log(nearest / rate)) > 0.02:
            return None
        tried[rate] = losses[nearest]
        if not wanted:
            try:
                further = further_rate("grid", tried)
            except MetricsError:
                return None
            wanted = [] if further is None else [further]
    return vertex(tried)


def test_on_1911_published_runs_the_found_rate_costs_little(shared_data: Path) -> None:
    grids: dict[tuple[str, str], dict[str, Losses]] = defaultdict(lambda: defaultdict(dict))
    with (shared_data / "public_runs" / "step_law_dense.csv").open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            grids[row["N"], row["D"]][row["bs"]][float(row["lr"])] = float(row["smooth loss"])
    assert len(grids) == 17
    penalties = []
    for cell in grids.values():
        own = []
        for losses in cell.values():
            rates = sorted(losses)
            found = [rate for start in rates if (rate := _search(losses, start)) is not None]
            lines = np.interp(np.log(found), np.log(rates), [losses[rate] for rate in rates])
            own += (lines - min(losses.values())).tolist()
        assert own, "no search of this cell stayed on its grid"
        penalties += own
    assert np.median(penalties) <= 0.002
    assert np.quantile(penalties, 0.9) <= 0.01
