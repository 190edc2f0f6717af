"""The time that a step's work would take at the device's peaks, beside the measured (roofline: arXiv 0809.3163)."""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.compute import micro_batch_work, optimizer_work
from efficientbench.metrics.sensors.hardware import DeviceRates
from efficientbench.planning.generation_plan import METHOD, memory_bytes_s
from efficientbench.planning.step_time import Efficiency, work_time_s
from efficientbench.profiling.trace import Breakdown

PEAK = Efficiency(matmul=1, attention=1, memory=1, link=1)

_KINDS_IN_A_TRACE = {"elementwise": "other", "embedding": "other"}
"""Kind of counted work → kind of the trace that it belongs to, where they differ."""


@dataclass(frozen=True)
class Bound:
    """The work of one kind that a rank does in a step."""

    flops: float
    moved_bytes: float
    bound_s: float
    """Sum over the operations of the longer of their FLOPs and their bytes over the device's peaks, in seconds."""
    measured_s: float

    @property
    def gap_s(self) -> float:
        """Seconds above the roofline; negative where caches save bytes that are counted."""
        return self.measured_s - self.bound_s


def bounds(config: RunConfig, layout: Layout, breakdown: Breakdown, rates: DeviceRates) -> dict[str, Bound]:
    """Return the bound of each kind of work in a step of the first rank, which computes the first stage."""
    works = {
        kind: tuple(work.times(layout.micro_batches) for work in each)
        for kind, each in micro_batch_work(config, layout, 0).items()
    }
    works["optimizer"] = optimizer_work(config, layout, 0)
    found: dict[str, Bound] = {}
    for counted, each in works.items():
        kind = _KINDS_IN_A_TRACE.get(counted, counted)
        before = found.get(kind, Bound(0, 0, 0, breakdown.seconds[kind]))
        found[kind] = Bound(
            flops=before.flops + sum(work.flops for work in each),
            moved_bytes=before.moved_bytes + sum(work.moved_bytes for work in each),
            bound_s=before.bound_s + work_time_s(counted, each, rates, PEAK),
            measured_s=before.measured_s,
        )
    return found


def largest_gap(found: dict[str, Bound], breakdown: Breakdown) -> tuple[str, float]:
    """Return the kind of work in which a step loses most time, and the lost time in seconds.

    Lost time is computing time above its bound, and all time of `communication` and `idle`.
    """
    gaps = {kind: bound.gap_s for kind, bound in found.items()}
    gaps |= {kind: breakdown.seconds[kind] for kind in ("communication", "idle")}
    kind = max(gaps, key=gaps.__getitem__)
    return kind, gaps[kind]


def probe_host(dtype: str, threads: int) -> DeviceRates:
    """Measure the processor's FLOP/s and bytes a second with `threads` threads, in about a second.

    The work is matrix products in the dtype, and a sum of large tensors.
    """
    import torch

    from efficientbench.metrics.monitoring.matmul_peak import measured_matmul_flops

    torch.set_num_threads(threads)
    return DeviceRates(
        name="this machine",
        backend="",
        peak_flops=measured_matmul_flops(torch.device("cpu"), dtype),
        memory_bytes_s=memory_bytes_s(),
        memory_bytes=None,
        in_node_bytes_s=0,
        between_nodes_bytes_s=None,
        sources=(f"measured now with {threads} threads: the fastest of some large products, {METHOD}",),
    )
