"""Plan a fine-tuning without its devices: memory, traffic, time, and the best layouts that fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from efficientbench.finetuning.planning.cost import (
    Offload,
    Trained,
    TuningFlops,
    ZeroLayout,
    host_memory,
    rank_memory,
    tuning_flops,
)
from efficientbench.finetuning.planning.shapes import Shape
from efficientbench.finetuning.planning.step import Rates, Sent, StepTime, crosses_nodes, project_step, step_traffic

RESERVE = 0.1
"""The share of a device's memory that a layout must leave free, for fragmentation and errors of the estimate."""
RUNTIME_BYTES = 1_500_000_000
"""A process's memory on an accelerator besides its tensors, as in the plans of pretraining; assumed."""


@dataclass(frozen=True)
class PlanRequest:
    """The fine-tuning to plan."""

    name: str
    shape: Shape
    trained: Trained
    layout: ZeroLayout
    """The configured layout."""
    memory_bytes: float
    """A device's memory."""
    rates: Rates | None
    """The rates of a device and its links; None: the plan has no times."""
    dtype: str = "bf16"
    """The configured dtype; memory and traffic are always counted in bf16."""

    @property
    def batch(self) -> int:
        """Samples per step over all ranks."""
        return self.layout.world * self.layout.micro * self.layout.accumulation


@dataclass(frozen=True)
class TuningPlan:
    """The plan of one layout."""

    request: PlanRequest
    layout: ZeroLayout

    @cached_property
    def memory(self) -> dict[str, int]:
        """A rank's peak memory by part, in bytes."""
        return rank_memory(self.request.shape, self.request.trained, self.layout, RUNTIME_BYTES)

    @property
    def total_bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.total_bytes <= (1 - RESERVE) * self.request.memory_bytes

    @property
    def host_bytes(self) -> int:
        """The host memory of a node's offloaded states."""
        return self.layout.per_node * host_memory(self.request.shape, self.request.trained, self.layout)

    @cached_property
    def traffic(self) -> list[Sent]:
        return step_traffic(self.request.shape, self.request.trained, self.layout)

    def sent_bytes(self, between_nodes: bool) -> float:
        """Return the bytes that a rank sends per step in groups across nodes, or in groups within its node."""
        return sum(each.sent_bytes for each in self.traffic if crosses_nodes(each, self.layout) == between_nodes)

    @cached_property
    def flops(self) -> TuningFlops:
        """FLOPs per token in samples of full length."""
        return tuning_flops(self.request.shape, self.request.trained, self.layout.tokens, self.layout.recompute)

    def time(self, tokens: int) -> StepTime | None:
        """Return a step's time with samples of `tokens` tokens; None if a rate is not known."""
        rates = self.request.rates
        if rates is None:
            return None
        return project_step(self.request.shape, self.request.trained, self.layout, rates, tokens)

    @property
    def _rank(self) -> tuple[float, ...]:
        """The sort key of layouts, smallest first: time; without rates bytes across nodes, bytes in a node, FLOPs."""
        offloaded = ("none", "optimizer", "all").index(self.layout.offload)
        projected = self.time(self.layout.tokens)
        if projected is not None:
            return projected.longest_s, self.total_bytes
        return self.sent_bytes(True), self.sent_bytes(False), self.flops.hardware, offloaded, self.total_bytes


def asked(request: PlanRequest) -> TuningPlan:
    """Return the plan of the configured layout."""
    return TuningPlan(request, request.layout)


def fitting(request: PlanRequest) -> list[TuningPlan]:
    """Return the layouts with the configured batch that fit a device, the best first."""
    plans = []
    for choices in _layouts(request):
        # If less offloading fits, more only costs time.
        mildest = next((plan for plan in (TuningPlan(request, each) for each in choices) if plan.fits), None)
        plans += [] if mildest is None else [mildest]
    return sorted(plans, key=lambda plan: plan._rank)


def _layouts(request: PlanRequest) -> Iterator[list[ZeroLayout]]:
    """Yield for ZeRO 2, 3 and 3 with hpZ, each micro-batch and recomputation the layouts with more and more offload."""
    base, samples = request.layout, request.layout.micro * request.layout.accumulation
    shared: list[tuple[Literal[2, 3], int]] = [(2, 1), (3, 1)]
    if base.nodes > 1:
        shared.append((3, base.per_node))
    offloads: tuple[Offload, ...] = ("none", "optimizer", "all")
    for stage, hpz in shared:
        for micro in (size for size in range(1, samples + 1) if samples % size == 0):
            for recompute in (False, True):
                chosen = replace(
                    base, stage=stage, hpz=hpz, micro=micro, accumulation=samples // micro, recompute=recompute
                )
                # Only stage 3 shards weights, and can offload them.
                allowed = offloads if stage == 3 else offloads[:2]
                yield [replace(chosen, offload=offload) for offload in allowed]
