"""How much figures differ where nothing does: between identical models under two names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from efficientbench.metrics.analysis.conditions import differences
from efficientbench.metrics.analysis.repeats import Group, group_repeats, model_identity
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.comparison import UNITS

FLOOR_METRICS = ("tokens_per_s", "energy_j_per_token", "aec_w", "amu_gb", "validation_loss")
"""What a noise floor is told of."""
_NAMED = 8
"""Models that a line names."""


@dataclass(frozen=True)
class NoiseFloor:
    """An A/A test: runs of one model under several names, under the same conditions."""

    names: tuple[str, ...]
    largest: dict[str, float]
    """Figure → the largest mean over the smallest, less 1."""

    def __str__(self) -> str:
        parts = ", ".join(f"{UNITS[metric]} {part:.2%}" for metric, part in self.largest.items())
        more = f" and {len(self.names) - _NAMED:,} more" if len(self.names) > _NAMED else ""
        return f"Noise floor, from the identical models {', '.join(self.names[:_NAMED])}{more}: {parts}."


def noise_floors(records: Sequence[RunRecord]) -> list[NoiseFloor]:
    """One for each model that ran under two names or more."""
    alike: list[list[Group]] = []
    of_model: dict[tuple[int, float, str], list[list[Group]]] = {}
    for group in group_repeats(record for record in records if record.status == "completed"):
        first = group.first
        known = of_model.setdefault((first.parameters, first.flops_per_token, model_identity(first)), [])
        found = next((same for same in known if not differences(same[0].first, first)), None)
        if found is None:
            known.append([group])
            alike.append(known[-1])
        else:
            found.append(group)
    floors = [_floor(same) for same in alike if len({group.name for group in same}) > 1]
    return [floor for floor in floors if floor.largest]


def _floor(groups: Sequence[Group]) -> NoiseFloor:
    largest = {}
    for metric in FLOOR_METRICS:
        spreads = [group.spread(metric) for group in groups]
        means = [spread.mean for spread in spreads if spread is not None and spread.mean > 0]
        if len(means) > 1:
            largest[metric] = max(means) / min(means) - 1
    return NoiseFloor(tuple(dict.fromkeys(group.name for group in groups)), largest)
