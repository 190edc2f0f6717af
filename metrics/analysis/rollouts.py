"""Compare the cost of sampling rollouts in reinforcement learning; all other figures are of the updates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from efficientbench.metrics.analysis.judging import Judge
from efficientbench.metrics.formulas.ratio import Ratio
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.record_parts import PhaseCost

NOT_MEASURED = "the sampling of answers was not measured"
NO_ENERGY = "the energy of the answers was not measured"


def tokens_per_s(cost: PhaseCost) -> float | None:
    """Return a phase's tokens per second; None where its time is 0."""
    return cost.tokens / cost.time_s if cost.time_s else None


def energy_j_per_token(cost: PhaseCost) -> float | None:
    """Return a phase's energy per token; None where the energy was not measured, or there were no tokens."""
    return cost.energy_j / cost.tokens if cost.energy_j is not None and cost.tokens else None


ROLLOUTS: dict[str, Callable[[PhaseCost], float | None]] = {
    "rollout_tokens_per_s": tokens_per_s,
    "rollout_energy_j_per_token": energy_j_per_token,
}
"""The figures of rollouts that are compared; their tokens are those of the answers alone."""


def rollout_ratios(judge: Judge, unavailable: dict[str, str]) -> list[Ratio]:
    """Return the ratios of the rollouts' figures, second over first; none unless all runs learned from rewards.

    `unavailable` receives the reason for each figure without a ratio.
    """
    records = [*judge.first.records, *judge.second.records]
    if any(record.reinforcement is None for record in records):
        return []
    found = []
    for name, read in ROLLOUTS.items():
        value = partial(_value, read=read)
        lacking = next((record for record in records if not value(record)), None)
        if lacking is None:
            found.append(judge.ratio(name, value))
        else:
            unavailable[name] = f"{lacking.run}: {_reason(lacking, name)}"
    return found


def _value(record: RunRecord, read: Callable[[PhaseCost], float | None]) -> float | None:
    cost = None if record.reinforcement is None else record.reinforcement.rollouts
    return None if cost is None else read(cost)


def _reason(record: RunRecord, name: str) -> str:
    """Return why a run lacks a figure of its rollouts."""
    cost = None if record.reinforcement is None else record.reinforcement.rollouts
    return NOT_MEASURED if cost is None or "energy" not in name else why_no_energy(record, cost)


def why_no_energy(record: RunRecord, cost: PhaseCost) -> str:
    """Return why the energy of a phase is not known; older records have one reason for all phases."""
    return cost.energy_unavailable or record.unavailable.get("energy_j", NO_ENERGY)
