"""The plan of a fine-tuning on ranks that need not be at hand: memory, traffic, time, and the best layout that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from efficientbench.basics.errors import ConfigError
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
"""Share of a device's memory that a layout leaves free, for fragments and for what the estimate does not know."""
RUNTIME_BYTES = 1_500_000_000
"""Memory that a process takes on an accelerator beside its tensors, as in the plans of pretraining; assumed."""


@dataclass(frozen=True)
class PlanRequest:
    """What is to be planned."""

    name: str
    shape: Shape
    trained: Trained
    layout: ZeroLayout
    """As the configuration asks for it."""
    memory_bytes: float
    """Of a device."""
    rates: Rates | None
    """None: the plan has no times."""
    dtype: str = "bf16"
    """That the run asks for; memory and traffic are counted in bf16."""

    @property
    def batch(self) -> int:
        """Samples in a step."""
        return self.layout.world * self.layout.micro * self.layout.accumulation


@dataclass(frozen=True)
class TuningPlan:
    """The figures of one layout."""

    request: PlanRequest
    layout: ZeroLayout

    @cached_property
    def memory(self) -> dict[str, int]:
        """Peak memory of a rank by part, in bytes."""
        return rank_memory(self.request.shape, self.request.trained, self.layout, RUNTIME_BYTES)

    @property
    def total_bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.total_bytes <= (1 - RESERVE) * self.request.memory_bytes

    @property
    def host_bytes(self) -> int:
        """Host memory of a node's offloaded states."""
        return self.layout.per_node * host_memory(self.request.shape, self.request.trained, self.layout)

    @cached_property
    def traffic(self) -> list[Sent]:
        return step_traffic(self.request.shape, self.request.trained, self.layout)

    def sent_bytes(self, between_nodes: bool) -> float:
        """Return what a rank sends in a step within its node, or in groups that reach beyond it."""
        return sum(each.sent_bytes for each in self.traffic if crosses_nodes(each, self.layout) == between_nodes)

    @cached_property
    def flops(self) -> TuningFlops:
        """FLOPs of a token in samples of full length."""
        return tuning_flops(self.request.shape, self.request.trained, self.layout.tokens, self.layout.recompute)

    def time(self, tokens: int) -> StepTime | None:
        """Return a step's time with samples of `tokens` tokens; None where rates are not known."""
        rates = self.request.rates
        if rates is None:
            return None
        return project_step(self.request.shape, self.request.trained, self.layout, rates, tokens)

    @property
    def _rank(self) -> tuple[float, ...]:
        """What the best layout has least of: time; without rates bytes across nodes, those in a node, FLOPs."""
        offloaded = ("none", "optimizer", "all").index(self.layout.offload)
        projected = self.time(self.layout.tokens)
        if projected is not None:
            return projected.longest_s, self.total_bytes
        return self.sent_bytes(True), self.sent_bytes(False), self.flops.hardware, offloaded, self.total_bytes


def asked(request: PlanRequest) -> TuningPlan:
    """Return the plan of the layout that the configuration asks for."""
    return TuningPlan(request, request.layout)


def fitting(request: PlanRequest) -> list[TuningPlan]:
    """Return the layouts that fit a device, the best first, all with the batch that is asked for."""
    plans = []
    for choices in _layouts(request):
        # Offloading more costs time and gains nothing where less of it fits.
        mildest = next((plan for plan in (TuningPlan(request, each) for each in choices) if plan.fits), None)
        plans += [] if mildest is None else [mildest]
    return sorted(plans, key=lambda plan: plan._rank)


def _layouts(request: PlanRequest) -> Iterator[list[ZeroLayout]]:
    """Yield ZeRO 2, 3 and 3 with hpZ, with each micro-batch and recomputation; of each, what may be offloaded."""
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
                # Only stage 3 shares weights out, and so can leave a part of them on each host.
                allowed = offloads if stage == 3 else offloads[:2]
                yield [replace(chosen, offload=offload) for offload in allowed]


def ranks_of_a_node(world: int, devices_per_node: int) -> int:
    """Return the ranks of a node. Raises ConfigError: the ranks are not whole nodes."""
    per_node = min(world, devices_per_node)
    if world % per_node:
        below = world // per_node * per_node
        raise ConfigError(
            f"--world: {world} ranks are not whole nodes of {per_node}: {below} or {below + per_node} would be, or "
            "another --devices-per-node"
        )
    return per_node
