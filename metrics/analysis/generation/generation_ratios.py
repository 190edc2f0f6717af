"""Compare the generation of two models: the ratio of each figure at every combination measured for both.

The requests of one measurement do not contain the noise between measurements. So a verdict needs repeats of both
models, as it does for training.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from efficientbench.metrics.analysis.generation.generation_sides import (
    Combination,
    Generating,
    combination_of,
    common_combinations,
    measured_rows,
)
from efficientbench.metrics.formulas.ratio import Ratio, Side, holm, make_ratio
from efficientbench.metrics.records.generation.generation import GenerationRow

COMPARED = (
    *("ttft_s_p50", "prefill_tokens_per_s", "decode_time_s"),
    *("prefill_energy_j_per_token", "decode_energy_j_per_token"),
)
"""The figures that are compared, by their names in GENERATION_FIGURES."""


@dataclass(frozen=True)
class Compared:
    """The comparison of both models at one combination of prompt, batch and new tokens."""

    combination: Combination
    ratios: tuple[Ratio, ...]
    """The figures' ratios, second model over first."""
    cache_bytes: tuple[int | None, int | None]
    """Size of one sequence's cache for both models; counted, so without noise."""
    missing: dict[str, str]
    """Figure without a ratio → the reason."""


def compare_generation(sides: Sequence[Generating], despite: Collection[str] = ()) -> list[Compared]:
    """Return the ratios at every combination measured for both models, with p values corrected for all of them.

    Arguments and errors are those of `common_combinations`.
    """
    found = [_compared(sides, combination) for combination in common_combinations(sides, despite)]
    p_values = {
        f"{place} {ratio.metric}": ratio.p_value
        for place, each in enumerate(found)
        for ratio in each.ratios
        if ratio.p_value is not None
    }
    adjusted = holm(p_values, {})
    return [
        replace(each, ratios=tuple(replace(r, p_value=adjusted.get(f"{place} {r.metric}")) for r in each.ratios))
        for place, each in enumerate(found)
    ]


def _compared(sides: Sequence[Generating], combination: Combination) -> Compared:
    first, second = ([row for row in measured_rows(made) if combination_of(row) == combination] for _, made in sides)
    ratios: list[Ratio] = []
    missing: dict[str, str] = {}
    for name in COMPARED:
        why = _why_not(name, [*first, *second])
        if why is not None:
            missing[name] = why
            continue
        one, other = (Side.of([float(row.value(name)) for row in rows]) for rows in (first, second))
        ratios.append(make_ratio(name, one, other))
    return Compared(combination, tuple(ratios), (first[0].cache_bytes, second[0].cache_bytes), missing)


def _why_not(name: str, rows: Sequence[GenerationRow]) -> str | None:
    """Return why a figure has no ratio; None where it has one."""
    lacking = next((row for row in rows if not row.value(name)), None)
    if lacking is not None:
        return lacking.why(name) or "it is 0"
    if "energy" not in name:
        return None
    phase = name.partition("_")[0]
    scopes = list(dict.fromkeys(row.value(f"{phase}_energy_scope") for row in rows))
    if len(scopes) > 1:
        return f"energy is of different parts of the machine: {' against '.join(map(str, scopes))}"
    return next((row.phases[phase].energy_doubt for row in rows if row.phases[phase].energy_doubt), None)
