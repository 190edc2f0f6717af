"""What a projection stands on: a device's calibration where there is one, else what published runs reached."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.basics.errors import MetricsError
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.communication import Transfer
from efficientbench.costs.memory import rank_tokens
from efficientbench.devices.registry import all_devices, device_called
from efficientbench.metrics.records.environment import version_of
from efficientbench.metrics.sensors.hardware import DeviceRates, device_rates
from efficientbench.planning.calibration import (
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
"""The share by which a step is assumed to differ from its projection in what measured rates leave out.

No less than any layout did in docs/measured/projected_step_time.json, on gloo ranks; elsewhere it was not measured.
Ranks beyond a host's cores take turns: their work counts as processor time, their transfers as time.
"""


@dataclass(frozen=True)
class Basis:
    """What a projection stands on."""

    rates: DeviceRates
    reached: Reached | Calibrated

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

    `device`: a name in the table of devices or as the driver reports it; of a calibrated one its type serves too.
    `world`: number of ranks.

    Raises:
        MetricsError: the device is not calibrated and the table lacks it, or the run has ranks that send each other
            what was measured of one rank alone.
    """
    dtype, peak = config.training.dtype, config.measurement.peak_flops
    found = find_calibration(device, Path(config.data.cache), dtype, peak)
    if found is None and device in {each.type for each in all_devices()}:
        raise MetricsError(
            f"'{device}' is a type of device, and data.cache={config.data.cache} has no rates of one in {dtype}: "
            "`efficientbench calibrate` measures them; or name a device, like 'H100 SXM'"
        )
    if found is None:
        rates = device_rates(device, dtype, peak)
        return Basis(rates, reached(rates.name, config.model))
    if world > 1 and math.isinf(found.rates.in_node_bytes_s):
        raise MetricsError(
            f"{found.path}: one rank alone was measured, and the run has {world}: `efficientbench calibrate` with the "
            "run's layout measures what they send each other"
        )
    return Basis(found.rates, found)


def find_calibration(device: str, folder: Path, dtype: str, peak: float | None = None) -> Calibrated | None:
    """Return the newest calibration of a device in a cache folder, of the installed torch if there is one.

    Ignore a damaged file, with a warning in the log.

    Args:
        device: its product name, its name in the table of devices, or its type.
        folder: the cache folder, `data.cache`.
        dtype: the dtype in which products must have been measured.
        peak: dense FLOP/s that MFU is of; None: the table's.
    """
    found = []
    for path in folder.glob("calibration_*.json"):
        try:
            calibration = read_calibration(path)
        except MetricsError as error:
            logger.warning("%s", error)
            continue
        known = calibration.conditions["type"] == device or is_device(calibration.device, device)
        if known and calibration.computes(dtype):
            found.append(calibrated(path, calibration, dtype, peak))
    own = version_of("torch") or "none"
    return max(found, key=lambda each: (each.torch == own, each.calibration.measured_at), default=None)


def calibrated(path: Path, calibration: Calibration, dtype: str, peak: float | None = None) -> Calibrated:
    """Return a calibration with the device's row of the table, and the best of what was measured of all it lacks."""
    near, far = ([each.rate for each in calibration.sent if each.far == is_far] for is_far in (False, True))
    try:
        rates = device_rates(calibration.device, dtype, peak)
    except MetricsError:
        rates = DeviceRates(
            name=calibration.device,
            backend=device_called(calibration.conditions["type"]).backend,
            peak_flops=peak or max(each.rate for each in calibration.of("matmul", dtype)),
            memory_bytes_s=max(each.rate for each in calibration.of("memory")),
            memory_bytes=None,
            in_node_bytes_s=max(near or far, default=math.inf),
            between_nodes_bytes_s=None,
            sources=("measured by calibrate",),
        )
    if rates.between_nodes_bytes_s is None:
        # Of many devices no system of the vendor's settles the network, but what nodes sent was measured.
        rates = replace(rates, between_nodes_bytes_s=max(far, default=None))
    return Calibrated(path, calibration, rates)


@dataclass(frozen=True)
class Calibrated:
    """A calibration as what projections stand on, in place of `Reached`."""

    path: Path
    calibration: Calibration
    rates: DeviceRates
    """The peaks, of which the measured rates are shares."""

    @property
    def efficiency(self) -> Shares:
        """The measured shares."""
        return self

    @property
    def torch(self) -> str:
        """The version of torch that was measured."""
        return self.calibration.conditions["torch"]

    @property
    def named(self) -> str:
        """The file, whose ranks were measured, when, and with which torch."""
        return f"{self.path} ({self.calibration.run}, {self.calibration.measured_at}, torch {self.torch})"

    @property
    def share(self) -> str:
        """Where the shares of the peaks are from."""
        return "calibrated"

    @property
    def error(self) -> str:
        """How wrong projections may be."""
        least, most = self.calibration.spread()
        return f"rates spread from {least:.2f} to {most:.2f} of their median; {ERROR:.0%} assumed for the rest"

    @property
    def time_factors(self) -> tuple[float, float]:
        """The ends of a step's interval, as factors on its projected time."""
        least, most = self.calibration.spread()
        return least * (1 - ERROR), most * (1 + ERROR)

    @property
    def time_range(self) -> str:
        """The factors by which a step may take longer than projected."""
        low, high = self.time_factors
        return f"a step takes {low:.2f} to {high:.2f} times as long, by {self.named}: {self.error}"

    def tokens_range(self, tokens_per_s: float) -> str:
        """Return the range of a device's tokens a second around a projection."""
        low, high = self.time_factors
        return f"{tokens_per_s / high:,.0f} to {tokens_per_s / low:,.0f} tokens/s a device; {self.error}"

    def assumed(self, rates: DeviceRates) -> str:
        """Return what a projection stands on."""
        own = "" if self.calibration.step_s is None else f", times {self.calibration.step_ratio:.3g} as its step took"
        # One rank has no link.
        by_table = not self.calibration.sent and math.isfinite(rates.in_node_bytes_s)
        links = "" if not by_table else f"; by the table {rates.in_node_bytes_s / 1e9:g} GB/s in a node"
        return f"calibrated: by the rates of {self.named}{own}{links}"

    def at(self, config: RunConfig, layout: Layout, stages: int) -> Efficiency:
        """Return what was measured of work nearest in size, with as many ranks at once; see `Shares`."""
        model, training, ratio = config.model, config.training, self.calibration.step_ratio
        ranks = max(1, layout.ranks_per_node * stages // layout.pp)
        rows, width = float(rank_tokens(config, layout)), model.ffn_hidden_size / layout.tp
        # Of the kind of layer with the most; a kind may have none.
        costs = ((view, view.attention_variant.costs) for view in model.views.values())
        most = max(each.causal_score_flops(view, training.seq_len) for view, each in costs)
        scores = max(rows * most, 1.0) / layout.tp
        if model.moe is not None:
            # Each expert multiplies the tokens that come to it.
            rows *= layout.ep * model.moe.top_k / model.moe.experts
            width = model.ffn_hidden_size / config.parallel.expert_tp
        moved = moved_bytes(rows * width * DTYPE_BYTES[training.dtype], bool(config.kernels.fused))
        matmul, attention, memory = (
            self.calibration.rate(work, size, ranks, training.dtype) / ratio
            for work, size in (
                ("matmul", 6 * rows * model.hidden_size * width),
                ("attention", 3 * scores),
                ("memory", moved),
            )
        )
        flops, memory_bytes = self.rates.peak_flops, self.rates.memory_bytes_s
        shares = matmul / flops, attention / flops, memory / memory_bytes, 1 / ratio
        return Measured(*shares, self.calibration, layout.ranks_per_node)


@dataclass(frozen=True)
class Measured(Efficiency):
    """The shares of one run by a calibration, and the times of its transfers."""

    calibration: Calibration
    at_once: int
    """Ranks of a node that send at the same time."""

    def transfer_s(self, transfer: Transfer, ranks: int, far: bool, link_bytes_s: float) -> float:
        """Return the time of as many calls as the transfer has, each as the group most like its own took."""

        def other(point: Point) -> tuple[object, ...]:
            ratios = point.ranks / ranks, point.at_once / self.at_once
            return point.far != far, *(abs(math.log(each)) for each in ratios), point.group != transfer.group

        points = self.calibration.of(transfer.operation)
        if not points:
            return super().transfer_s(transfer, ranks, far, link_bytes_s)
        nearest = min(map(other, points))
        alike = [each for each in points if other(each) == nearest]
        call_s = time_at(alike, transfer.sent_bytes(ranks) / transfer.calls)
        return transfer.calls * call_s * self.calibration.step_ratio
