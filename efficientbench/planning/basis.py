"""What a projection stands on: a device's calibration where there is one, else what published runs reached."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.basics.errors import MetricsError
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.communication import Transfer
from efficientbench.costs.memory import rank_tokens
from efficientbench.devices.registry import device_called
from efficientbench.metrics.sensors.hardware import DeviceRates, device_rates
from efficientbench.planning.calibration import (
    OPERATIONS,
    Calibration,
    Point,
    is_device,
    moved_bytes,
    read_calibration,
    time_at,
)
from efficientbench.planning.efficiency import Efficiency, Reached, Shares, reached

logger = logging.getLogger(__name__)

ERROR = 0.15
"""By how much a step may differ from its projection by measured rates in what these leave out:
tests/benchmarks/projected_step_time.py holds shapes and layouts to it that were not measured."""
ALIKE = {"reduce-scatter": "all-gather", "all-gather": "reduce-scatter", "all-to-all": "all-gather"}
"""Operation → the one by which it is projected where it was not measured; else by any."""


@dataclass(frozen=True)
class Basis:
    """What a projection stands on."""

    rates: DeviceRates
    reached: Reached | Calibrated

    @property
    def shares(self) -> Shares:
        """What runs reach of the rates."""
        found = self.reached
        return found.efficiency if isinstance(found, Reached) else MeasuredShares(found.calibration, self.rates)

    @property
    def assumptions(self) -> list[str]:
        """A line with a projection's assumptions, and a line with the sources of the device's rates."""
        return [
            f"{self.reached.assumed(self.rates)}; only gradients and weights of replicas hide behind computing; "
            "experts get equal shares; loading, evaluation and checkpoints left out",
            f"rates: {'; '.join(self.rates.sources)}",
        ]


def basis(device: str, config: RunConfig, world: int) -> Basis:
    """Return what a run's projection on a device stands on: its calibration in `data.cache`, else published runs.

    Args:
        device: a name in the table of devices or as the driver reports it; of a calibrated one its type serves too.
        config: the run's configuration.
        world: number of ranks.

    Raises:
        MetricsError: the device is not calibrated and the table lacks it, or the run has ranks that send each other
            what was measured of one rank alone.
    """
    dtype, peak = config.training.dtype, config.measurement.peak_flops
    found = find_calibration(device, Path(config.data.cache), dtype)
    if found is None:
        rates = device_rates(device, dtype, peak)
        return Basis(rates, reached(rates.name, config.model))
    rates = found.rates(dtype, peak)
    if world > 1 and math.isinf(rates.in_node_bytes_s):
        raise MetricsError(
            f"{found.path}: one rank alone was measured, and the run has {world}: `efficientbench calibrate` with the "
            "run's layout measures what they send each other"
        )
    return Basis(rates, found)


def find_calibration(device: str, folder: Path, dtype: str) -> Calibrated | None:
    """Return the newest calibration of a device in a cache folder, of the installed torch if there is one.

    Ignore a damaged file, with a warning in the log.

    Args:
        device: its product name, its name in the table of devices, or its type.
        folder: the cache folder, `data.cache`.
        dtype: the dtype in which products must have been measured.
    """
    found = []
    for path in folder.glob("calibration_*.json"):
        try:
            calibration = read_calibration(path)
        except MetricsError as error:
            logger.warning("%s", error)
            continue
        known = calibration.conditions["type"] == device.lower() or is_device(calibration.device, device)
        if known and calibration.of("matmul", dtype):
            found.append(Calibrated(path, calibration))
    return max(found, key=lambda each: (each.other_torch is None, each.calibration.measured_at), default=None)


@dataclass(frozen=True)
class Calibrated:
    """A calibration as what projections stand on, in place of `Reached`."""

    path: Path
    calibration: Calibration

    @cached_property
    def other_torch(self) -> str | None:
        """The torch that is installed, if it is another one than was measured."""
        try:
            installed = metadata.version("torch")
        except metadata.PackageNotFoundError:
            return None
        return None if installed == self.calibration.conditions["torch"] else installed

    def rates(self, dtype: str, peak: float | None) -> DeviceRates:
        """Return the device's row of the table; of a device that has none the best of what was measured."""
        calibration = self.calibration
        try:
            return device_rates(calibration.device, dtype, peak)
        except MetricsError:
            sent = [each for each in calibration.points if each.work in OPERATIONS]
            near, far = ([each.rate for each in sent if each.far == is_far] for is_far in (False, True))
            return DeviceRates(
                name=calibration.device,
                backend=device_called(calibration.conditions["type"]).backend,
                peak_flops=peak or max(each.rate for each in calibration.of("matmul", dtype)),
                memory_bytes_s=max(each.rate for each in calibration.of("memory")),
                memory_bytes=None,
                in_node_bytes_s=max(near or far, default=math.inf),
                between_nodes_bytes_s=max(far, default=None),
                sources=("measured by calibrate",),
            )

    @property
    def share(self) -> str:
        """Where the shares of the peaks are from."""
        return f"by the rates that {self.named} has"

    @property
    def named(self) -> str:
        """The file, whose ranks were measured, when, and with which torch."""
        made = self.calibration
        other = f", and {self.other_torch} is installed" if self.other_torch else ""
        return f"{self.path} ({made.run}, {made.measured_at}, torch {made.conditions['torch']}{other})"

    @property
    def error(self) -> str:
        """How wrong projections may be."""
        least, most = self.calibration.spread()
        return (
            f"measured rates spread from {least:.2f} to {most:.2f} of their median time, and {ERROR:.0%} stand for "
            "what they leave out"
        )

    @property
    def time_factors(self) -> tuple[float, float]:
        """The ends of a step's interval, as factors on its projected time."""
        least, most = self.calibration.spread()
        return least * (1 - ERROR), most * (1 + ERROR)

    @property
    def time_range(self) -> str:
        """By which factors a step may take longer than projected."""
        low, high = self.time_factors
        return f"a step takes {low:.2f} to {high:.2f} times as long, by {self.named}: {self.error}"

    def tokens_range(self, tokens_per_s: float) -> str:
        """Return the range of a device's tokens a second around a projection."""
        low, high = self.time_factors
        return f"{tokens_per_s / high:,.0f} to {tokens_per_s / low:,.0f} tokens/s a device; {self.error}"

    def assumed(self, rates: DeviceRates) -> str:
        """Return what a projection stands on."""
        own = "" if self.calibration.step_s is None else f", times {self.calibration.step_ratio:.3g} as its step took"
        sent = any(each.work in OPERATIONS for each in self.calibration.points)
        links = "" if sent else f"; {rates.in_node_bytes_s / 1e9:g} GB/s in a node by the table, not measured"
        return f"calibrated: by the rates of {self.named}{own}{links}"


@dataclass(frozen=True)
class MeasuredShares:
    """The measured rates as shares of a device's peaks, which depend on a run's shapes and layout."""

    calibration: Calibration
    rates: DeviceRates

    def at(self, config: RunConfig, layout: Layout, stages: int) -> Efficiency:
        """Return what was measured of work nearest in size, with as many ranks at once; see `efficiency.Shares`."""
        model, training = config.model, config.training
        ranks = max(1, layout.ranks_per_node * stages // layout.pp)
        tokens, width, rows = rank_tokens(config, layout), model.ffn_hidden_size / layout.tp, 1.0
        if model.moe is not None:
            # Each expert multiplies the tokens that come to it.
            rows, width = layout.ep * model.moe.top_k / model.moe.experts, model.ffn_hidden_size
            width /= config.parallel.expert_tp
        scores = model.attention_variant.costs.causal_score_flops(model, training.seq_len)
        sizes = {
            "matmul": 6 * rows * tokens * model.hidden_size * width,
            "attention": 3 * tokens * scores / layout.tp,
            "memory": moved_bytes(rows * tokens * width * DTYPE_BYTES[training.dtype], bool(config.kernels.fused)),
        }
        matmul, attention, memory = (
            self._rate(work, size, ranks, training.dtype) / self.calibration.step_ratio for work, size in sizes.items()
        )
        flops, memory_bytes = self.rates.peak_flops, self.rates.memory_bytes_s
        shares = matmul / flops, attention / flops, memory / memory_bytes, 1 / self.calibration.step_ratio
        return Measured(*shares, self.calibration, layout.ranks_per_node)

    def _rate(self, work: str, size: float, ranks: int, dtype: str) -> float:
        """Return FLOP/s or bytes/s of work of a size while so many ranks of a node do it."""
        points = self.calibration.of(work, dtype)
        nearest = min({each.at_once for each in points}, key=lambda count: (abs(math.log(count / ranks)), count))
        return size / time_at([each for each in points if each.at_once == nearest], size)


@dataclass(frozen=True)
class Measured(Efficiency):
    """The shares of one run by a calibration, and the times of its transfers."""

    calibration: Calibration
    at_once: int
    """Ranks of a node that send at the same time."""

    def transfer_s(self, transfer: Transfer, ranks: int, far: bool, link_bytes_s: float) -> float:
        """Return the time of as many calls as the transfer has, each as the group most like its own took."""
        points = self._alike(transfer.operation, transfer.group, ranks, far)
        if not points:
            return super().transfer_s(transfer, ranks, far, link_bytes_s)
        sent_bytes = transfer.sent_bytes(ranks) / transfer.calls
        return transfer.calls * time_at(points, sent_bytes) * self.calibration.step_ratio

    def _alike(self, operation: str, group: str, ranks: int, far: bool) -> list[Point]:
        """Return the points of the operation in one group: on as many nodes, of as many ranks, of this kind."""

        def other(point: Point) -> tuple[bool, float, float, bool]:
            sizes = abs(math.log(point.ranks / ranks)) if operation != "send" else 0.0
            return point.far != far, sizes, abs(math.log(point.at_once / self.at_once)), point.group != group

        works = (operation, ALIKE.get(operation, ""), *OPERATIONS)
        points = next((found for work in works if (found := self.calibration.of(work))), [])
        nearest = min(points, key=other, default=None)
        return [each for each in points if nearest is not None and _group(each) == _group(nearest)]


def _group(point: Point) -> tuple[object, ...]:
    return point.far, point.ranks, point.at_once, point.group
