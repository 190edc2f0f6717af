"""Which runs can be compared: they differ in their model alone."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.metrics.analysis.conditions import CONDITIONS
from efficientbench.metrics.records.record import RunRecord

_SHARED = ("device", "dtype", "sequence", "data", "global_batch", "tokens", "formulas")
"""Conditions that a plot's runs must share, and the layout but for the micro-batch, which each size has its own of."""


def group(record: RunRecord, energy: bool = False) -> str:
    """The same text for runs whose figures (with `energy`: of energy) can be laid side by side."""
    names = (*_SHARED, "energy_scope") if energy else _SHARED
    return repr((record.smoke, _grid(record), [CONDITIONS[name](record) for name in names]))


def differing(records: Sequence[RunRecord]) -> list[str]:
    """The conditions that these runs do not share."""
    found = ["smoke"] if len({record.smoke for record in records}) > 1 else []
    found += ["layout"] if len({_grid(record) for record in records}) > 1 else []
    return found + [name for name in _SHARED if len({CONDITIONS[name](record) for record in records}) > 1]


def _grid(record: RunRecord) -> tuple[int, ...]:
    return record.tp, record.pp, record.dp, record.ep, record.cp
