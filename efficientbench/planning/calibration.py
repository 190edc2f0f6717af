"""What `calibrate` measured of a device and of the links between ranks, as a file; without torch."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import read_whole
from efficientbench.basics.part import PositiveInt, Seconds
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.sensors.hardware import known_device

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send")


@dataclass(frozen=True)
class Point:
    """How long one kind of work of one size took."""

    work: str
    """matmul, attention, memory, host to device, or one of OPERATIONS."""
    size: Annotated[float, Field(gt=0, le=1e30)]
    """FLOPs, forward and backward; bytes read and written; bytes copied; or bytes that a rank sends."""
    at_once: PositiveInt
    """Ranks of a node that did it at the same time."""
    time_s: Seconds
    """The median over rounds, each the mean on the slowest rank."""
    least_s: Seconds
    """The shortest round."""
    most_s: Seconds
    dtype: str = ""
    """The dtype of matmul and attention; empty for other work."""
    ranks: PositiveInt = 1
    """Ranks of the group."""
    group: str = ""
    """The kind of group, like tp."""
    far: bool = False
    """Whether the group lies on several nodes."""

    @property
    def rate(self) -> float:
        """FLOP/s or bytes/s."""
        return self.size / self.time_s


@dataclass(frozen=True)
class Calibration:
    """One measurement of a device."""

    conditions: dict[str, str]
    """Everything by which it is kept: device, type, and versions of torch, kernels and drivers."""
    measured_at: str
    """Date and time in UTC."""
    run: str
    """The run and the ranks whose groups were measured."""
    rounds: PositiveInt
    points: tuple[Point, ...]
    missing: dict[str, str]
    """Work that was not measured → why."""
    step_s: tuple[Seconds, Seconds, Seconds] | None = None
    """The time of a step of the run: median, least and most; None: `missing` has the reason."""
    step_ratio: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """The ratio of that step's time to its projection by the points alone; 1 without such a step."""

    @property
    def device(self) -> str:
        """The product name of the device."""
        return self.conditions["device"]

    def of(self, work: str, dtype: str = "") -> list[Point]:
        """Return the points of a kind of work; `dtype`: of those that have one."""
        return [each for each in self.points if each.work == work and each.dtype in ("", dtype)]

    def computes(self, dtype: str) -> bool:
        """Return whether products and attention were measured in a dtype."""
        return bool(self.of("matmul", dtype) and self.of("attention", dtype))

    @property
    def sent(self) -> list[Point]:
        """The points of what ranks send; empty where one rank alone was measured."""
        return [each for each in self.points if each.work in OPERATIONS]

    def rate(self, work: str, size: float, ranks: int, dtype: str) -> float:
        """Return FLOP/s or bytes/s of work of a size while so many ranks of a node do it."""
        points = self.of(work, dtype)
        nearest = min({each.at_once for each in points}, key=lambda count: (abs(math.log(count / ranks)), count))
        return size / time_at([each for each in points if each.at_once == nearest], size)

    def spread(self) -> tuple[float, float]:
        """Return the shortest and the longest round over the median, as the median of all points has it."""
        times = [(each.time_s, each.least_s, each.most_s) for each in self.points]
        times += [self.step_s] if self.step_s else []
        return (
            statistics.median(least_s / time_s for time_s, least_s, _ in times),
            statistics.median(most_s / time_s for time_s, _, most_s in times),
        )


def place(folder: Path, conditions: dict[str, str]) -> Path:
    """Return the file of a calibration under its conditions, in a run's cache folder."""
    digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()
    return folder / f"calibration_{digest[:16]}.json"


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration. Raises MetricsError: the file cannot be written."""
    write_whole(path, TypeAdapter(Calibration).dump_json(calibration, indent=2).decode() + "\n")


def read_calibration(path: Path) -> Calibration:
    """Return the calibration that was written. Raises MetricsError: the file is damaged, or none."""
    try:
        found: Calibration = TypeAdapter(Calibration).validate_json(read_whole(path))
    except (OSError, ValidationError) as error:
        reason = str(error).partition("\n")[0]
        raise MetricsError(f"{path}: holds no calibration ({reason}): run `efficientbench calibrate` again") from None
    lacking = {"matmul", "attention", "memory"} - {each.work for each in found.points}
    if lacking := lacking | {"device", "type", "torch"} - found.conditions.keys():
        reason = f"no {', '.join(sorted(lacking))}"
        raise MetricsError(f"{path}: holds no calibration ({reason}): run `efficientbench calibrate` again")
    return found


def is_device(recorded: str, name: str) -> bool:
    """Return whether a recorded device is the one of this name, which may be the table's or the driver's."""
    if recorded == name:
        return True
    try:
        return known_device(recorded) == known_device(name)
    except MetricsError:
        return False


def moved_bytes(result_bytes: float, fused: bool) -> float:
    """Return the bytes that SwiGLU reads and writes, forward and backward, as costs/compute.py counts them."""
    return (8 if fused else 17) * result_bytes


def time_at(points: Sequence[Point], size: float) -> float:
    """Return the seconds of work of a size: on straight lines of the logarithms between the measured sizes.

    Smaller work takes as long as the smallest, which waits more than it works; larger has the rate of the largest.
    """
    by_size = sorted(points, key=lambda point: point.size)
    smallest, largest = by_size[0], by_size[-1]
    if size <= smallest.size:
        return smallest.time_s
    if size >= largest.size:
        return largest.time_s * size / largest.size
    above = next(number for number, each in enumerate(by_size) if each.size > size)
    low, high = by_size[above - 1], by_size[above]
    part = math.log(size / low.size) / math.log(high.size / low.size)
    return low.time_s * (high.time_s / low.time_s) ** part
