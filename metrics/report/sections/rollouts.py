"""Tabulate rewards, and the cost of sampling rollouts beside that of the updates."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.metrics.analysis.rollouts import NOT_MEASURED, energy_j_per_token, tokens_per_s, why_no_energy
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.record_parts import PhaseCost, Reinforcement
from efficientbench.metrics.report.headline import with_names
from efficientbench.metrics.report.table import ABSENT, Table, number

_PHASE = ("s", "tokens", "tokens/s", "J", "J/token")
HEADER = (
    *("run", "questions", "without signal", "first reward", "last reward"),
    *(f"rollouts, {unit}" for unit in _PHASE),
    *(f"updates, {unit}" for unit in _PHASE),
)
NOTES = (
    "Without signal: questions whose answers all had one reward, from which nothing was learned.",
    "First and last reward: means over ten steps.",
    "Rollouts: sampling and rewarding the answers, whose own tokens count. Updates: the measured steps, with questions "
    "and padding among their tokens; all other tables are of these alone.",
)


def rollouts_table(records: Sequence[RunRecord]) -> Table:
    """Return a row for each run that learned from rewards."""
    found = [
        (name, record, record.reinforcement) for name, record in with_names(records) if record.reinforcement is not None
    ]
    rows = [
        (name, *_learned(learned), *_cells(learned.rollouts), *_cells(learned.updates)) for name, _, learned in found
    ]
    reasons = dict.fromkeys(reason for _, record, learned in found for reason in _reasons(record, learned))
    return Table(HEADER, rows, notes=(*NOTES, *reasons))


def _learned(learned: Reinforcement) -> tuple[str, ...]:
    share = f"{learned.without_signal / learned.questions:.1%}" if learned.questions else ABSENT
    rewards = (number(each, ".4g") for each in (learned.reward_first, learned.reward_last))
    return f"{learned.questions:,}", share, *rewards


def _cells(cost: PhaseCost | None) -> tuple[str, ...]:
    if cost is None:
        return (ABSENT,) * len(_PHASE)
    return (
        f"{cost.time_s:,.1f}",
        f"{cost.tokens:,}",
        number(tokens_per_s(cost), ",.0f"),
        number(cost.energy_j, ",.0f"),
        number(energy_j_per_token(cost), ".3g"),
    )


def _reasons(record: RunRecord, learned: Reinforcement) -> list[str]:
    """Return why figures of a run are n/a."""
    if learned.rollouts is None or learned.updates is None:
        return [f"{ABSENT} seconds, tokens and J of {record.run}: {NOT_MEASURED}."]
    phases = {"rollouts": learned.rollouts, "updates": learned.updates}
    lacking = {name: why_no_energy(record, cost) for name, cost in phases.items() if cost.energy_j is None}
    return [f"{ABSENT} J of {name} of {record.run}: {reason}." for name, reason in lacking.items()]
