"""What a step's work would take at the device's peaks, beside what it took (roofline: arXiv 0809.3163)."""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.profiling.trace import Breakdown
from efficientbench.step_time import Efficiency, work_time_s
from efficientbench.work_cost import Work, micro_batch_work, optimizer_work
from metrics.hardware import DeviceRates

PEAK = Efficiency(matmul=1, attention=1, memory=1, link=1)
# Kinds of counted work that a trace shows together.
_SHOWN_AS = {"elementwise": "other", "embedding": "other"}


@dataclass(frozen=True)
class Bound:
    """One kind of work of a rank in a step."""

    work: Work
    bound_s: float
    """The longer of its FLOPs and its bytes over the device's peaks."""
    measured_s: float

    @property
    def gap_s(self) -> float:
        """What a step would lose if this ran at the roofline; negative where caches beat the bytes as counted."""
        return self.measured_s - self.bound_s


def bounds(config: RunConfig, layout: Layout, breakdown: Breakdown, rates: DeviceRates) -> dict[str, Bound]:
    """Of the first rank, which computes the first stage, in a step."""
    work: dict[str, Work] = {}
    seconds: dict[str, float] = {}
    counted = {kind: each.times(layout.micro_batches) for kind, each in micro_batch_work(config, layout, 0).items()}
    counted["optimizer"] = optimizer_work(config, layout, 0)
    for kind, each in counted.items():
        shown = _SHOWN_AS.get(kind, kind)
        work[shown] = work.get(shown, Work(0, 0)) + each
        seconds[shown] = seconds.get(shown, 0.0) + work_time_s(kind, each, rates, PEAK)
    return {kind: Bound(work[kind], seconds[kind], breakdown.seconds[kind]) for kind in work}


def largest_gap(found: dict[str, Bound], breakdown: Breakdown) -> tuple[str, float]:
    """The kind that a step loses most time to, and how much, in seconds: computing above its bound, or time in which
    nothing is computed."""
    gaps = {kind: bound.gap_s for kind, bound in found.items()}
    gaps |= {kind: breakdown.seconds[kind] for kind in ("communication", "idle")}
    kind = max(gaps, key=gaps.__getitem__)
    return kind, gaps[kind]
