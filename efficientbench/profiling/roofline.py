"""What a step's work would take at the device's peaks, beside what it took (roofline: arXiv 0809.3163)."""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.compute import micro_batch_work, optimizer_work
from efficientbench.metrics.hardware import DeviceRates
from efficientbench.planning.step_time import Efficiency, work_time_s
from efficientbench.profiling.trace import Breakdown

PEAK = Efficiency(matmul=1, attention=1, memory=1, link=1)
# Kinds of counted work that a trace shows together.
_SHOWN_AS = {"elementwise": "other", "embedding": "other"}


@dataclass(frozen=True)
class Bound:
    """One kind of work of a rank in a step."""

    flops: float
    moved_bytes: float
    bound_s: float
    """Of each operation the longer of its FLOPs and its bytes over the device's peaks, added up."""
    measured_s: float

    @property
    def gap_s(self) -> float:
        """What a step would lose if this ran at the roofline; negative where caches beat the bytes as counted."""
        return self.measured_s - self.bound_s


def bounds(config: RunConfig, layout: Layout, breakdown: Breakdown, rates: DeviceRates) -> dict[str, Bound]:
    """Of the first rank, which computes the first stage, in a step."""
    times = layout.micro_batches
    counted = micro_batch_work(config, layout, 0)
    counted = {kind: tuple(work.times(times) for work in works) for kind, works in counted.items()}
    counted["optimizer"] = (optimizer_work(config, layout, 0),)
    found: dict[str, Bound] = {}
    for kind, works in counted.items():
        shown = _SHOWN_AS.get(kind, kind)
        before = found.get(shown, Bound(0, 0, 0, breakdown.seconds[shown]))
        found[shown] = Bound(
            flops=before.flops + sum(work.flops for work in works),
            moved_bytes=before.moved_bytes + sum(work.moved_bytes for work in works),
            bound_s=before.bound_s + work_time_s(kind, works, rates, PEAK),
            measured_s=before.measured_s,
        )
    return found


def largest_gap(found: dict[str, Bound], breakdown: Breakdown) -> tuple[str, float]:
    """The kind that a step loses most time to, and how much, in seconds: computing above its bound, or time in which
    nothing is computed."""
    gaps = {kind: bound.gap_s for kind, bound in found.items()}
    gaps |= {kind: breakdown.seconds[kind] for kind in ("communication", "idle")}
    kind = max(gaps, key=gaps.__getitem__)
    return kind, gaps[kind]
