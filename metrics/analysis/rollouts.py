"""Compare what reinforcement learning spends on sampling answers; all other figures are of its updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from efficientbench.metrics.analysis.noise import aa_floor
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.formulas.ratio import Ratio, Side, make_ratio
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.record_parts import PhaseCost

NOT_MEASURED = "the sampling of answers was not measured"
NO_ENERGY = "the energy of the answers was not measured"


def tokens_per_s(cost: PhaseCost) -> float | None:
    """Return how fast a phase computed its tokens; None where its clock did not move."""
    return cost.tokens / cost.time_s if cost.time_s else None


def energy_j_per_token(cost: PhaseCost) -> float | None:
    """Return the energy of one of a phase's tokens; None where it was not measured, or there was none."""
    return cost.energy_j / cost.tokens if cost.energy_j is not None and cost.tokens else None


ROLLOUTS: dict[str, Callable[[PhaseCost], float | None]] = {
    "rollout_tokens_per_s": tokens_per_s,
    "rollout_energy_j_per_token": energy_j_per_token,
}
"""Figures of the answers that are compared: tokens are those of the answers alone."""


def rollout_ratios(
    first: Group, second: Group, alike: Sequence[Sequence[RunRecord]], unavailable: dict[str, str]
) -> list[Ratio]:
    """Return the ratios of what sampling took, second over first; none where a run learned otherwise.

    Args:
        first: the runs that ratios are relative to.
        second: the runs compared with them.
        alike: groups of runs of identical models, which tell the noise.
        unavailable: gets the reason for each figure without a ratio.
    """
    records = [*first.records, *second.records]
    if any(record.reinforcement is None for record in records):
        return []
    found = []
    for name, read in ROLLOUTS.items():
        value = partial(_value, read=read)
        lacking = next((record for record in records if not value(record)), None)
        if lacking is not None:
            unavailable[name] = f"{lacking.run}: {_reason(lacking, name)}"
            continue
        one, other = (Side.of([value(record) or 0.0 for record in side.records]) for side in (first, second))
        found.append(make_ratio(name, one, other, aa_floor(alike, value)))
    return found


def _value(record: RunRecord, read: Callable[[PhaseCost], float | None]) -> float | None:
    cost = None if record.reinforcement is None else record.reinforcement.rollouts
    return None if cost is None else read(cost)


def _reason(record: RunRecord, name: str) -> str:
    """Return why a run lacks a figure of its answers."""
    cost = None if record.reinforcement is None else record.reinforcement.rollouts
    return NOT_MEASURED if cost is None or "energy" not in name else why_no_energy(record, cost)


def why_no_energy(record: RunRecord, cost: PhaseCost) -> str:
    """Return why the energy of a phase is not known; older records have one reason for all."""
    return cost.energy_unavailable or record.unavailable.get("energy_j", NO_ENERGY)
