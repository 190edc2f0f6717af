"""Computes each rank's own figures: its step time, and those of the accelerator that it computes on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from efficientbench.metrics.formulas.definitions import BYTES_PER_GB
from efficientbench.metrics.formulas.device_use import RankUse
from efficientbench.metrics.monitoring.measurement import DeviceMeasurement, RankMeasurement


def rank_uses(ranks: Sequence[RankMeasurement], accelerators: Sequence[DeviceMeasurement]) -> tuple[RankUse, ...]:
    """Return each rank's step time and use of its accelerator; empty for a single rank, or if no step was measured.

    Args:
        ranks: measurements of the same steps, one for each rank.
        accelerators: the ranks' accelerators, each once; empty where ranks share a host, whose figures are no rank's.
    """
    if len(ranks) < 2 or not ranks[0].steps:
        return ()
    places = _places(ranks, {each.info.uuid for each in accelerators})
    used = {places[each.info.uuid]: each for each in accelerators}
    return tuple(_use(rank, used.get(rank.rank)) for rank in ranks)


def _places(ranks: Sequence[RankMeasurement], uuids: set[str]) -> dict[str, int]:
    """Return the uuid of each accelerator → the rank that computes on it.

    A rank that reads several accelerators of a node is the first of the ranks that compute on them.
    """
    places: dict[str, int] = {}
    for rank in ranks:
        read = [device.info.uuid for device in rank.devices if device.info.uuid in uuids]
        for place, uuid in enumerate(read):
            places.setdefault(uuid, rank.rank + place)
    return places


def _use(rank: RankMeasurement, device: DeviceMeasurement | None) -> RankUse:
    times_s = [step.time_s for step in rank.steps]
    peak = None if device is None else device.peak_memory_device_bytes
    return RankUse(
        rank=rank.rank,
        step_time_s=math.fsum(times_s) / len(times_s),
        amu_gb=None if device is None else device.amu_gb,
        peak_memory_gb=None if peak is None else peak / BYTES_PER_GB,
        pcu=None if device is None else device.pcu,
        energy_j=None if device is None else device.energy_j,
    )
