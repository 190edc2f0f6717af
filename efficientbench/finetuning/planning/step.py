"""The transfers of a fine-tuning's step between ranks, and the time that a step takes by them, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from efficientbench.finetuning.planning.cost import BF16_BYTES, Trained, ZeroLayout, tuning_flops
from efficientbench.finetuning.planning.shapes import Shape

REACHED = 0.4
"""Share of a device's peak that matrix products reach; assumed, not measured."""
LINK = 0.8
"""Share of a link's rate that a collective reaches; assumed, not measured."""
HOST_BYTES_S = 16e9
"""Between host and device, for what is offloaded; assumed, not measured."""

HOST_MEMORY_BYTES_S = 100e9
"""Of a node's memory, which its ranks share where the host updates; assumed, not measured."""
UPDATE_BYTES = 28
"""That AdamW moves for a number: master weight and two moments both ways in float32, gradient and weight in bf16."""


@dataclass(frozen=True)
class Rates:
    """What a device and its links can do; None where it is not known."""

    name: str
    peak_flops: float
    in_node_bytes_s: float | None = None
    between_nodes_bytes_s: float | None = None
    """A device's share of its node's network."""


@dataclass(frozen=True)
class Sent:
    """Collectives of a rank with one purpose, over a step."""

    purpose: str
    operation: Literal["all-gather", "reduce-scatter", "all-reduce"]
    ranks: int
    """In the group."""
    payload_bytes: float
    """Of all whole tensors."""

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends, and receives: (n − 1) / n of the payload; twice that in an all-reduce."""
        share = (self.ranks - 1) / self.ranks
        return self.payload_bytes * share * (2 if self.operation == "all-reduce" else 1)


def step_traffic(shape: Shape, trained: Trained, layout: ZeroLayout) -> list[Sent]:
    """Return what a rank sends in a step.

    Stage 3 gathers all weights in the forward pass of each micro-batch and those that gradients pass again in the
    backward pass, and reduces the gradients of each (arXiv 1910.02054, section 7). With hpZ the gathers stay among its
    ranks: those of frozen weights in both passes, because DeepSpeed makes only the copies of trained weights again
    after an update; those of trained ones in the backward pass. Small tensors that each rank keeps whole are counted
    as if they were gathered too.
    """
    own, frozen = BF16_BYTES * trained.parameters(shape), BF16_BYTES * trained.frozen(shape)
    back = BF16_BYTES * trained.frozen_backward(shape)
    world, times = layout.world, layout.accumulation
    if layout.stage == 0:
        found = [Sent("gradients", "all-reduce", world, own)]
    elif layout.stage == 2:
        found = [
            Sent("gradients", "reduce-scatter", world, times * own),
            Sent("trained weights after the update", "all-gather", world, own),
        ]
    else:
        second = layout.hpz if layout.hpz > 1 else world
        found = [
            Sent("frozen weights, forward", "all-gather", second, times * frozen),
            Sent("frozen weights, backward", "all-gather", second, times * back),
            Sent("trained weights, forward", "all-gather", world, times * own),
            Sent("trained weights, backward", "all-gather", second, times * own),
            Sent("gradients", "reduce-scatter", world, times * own),
        ]
    return [each for each in found if each.sent_bytes]


def crosses_nodes(sent: Sent, layout: ZeroLayout) -> bool:
    """Return whether the group reaches beyond a node."""
    return sent.ranks > layout.per_node


@dataclass(frozen=True)
class StepTime:
    """A projected step, by part, in seconds."""

    compute_s: float
    communication_s: float
    host_s: float
    """Copies of offloaded states between host and device, and the host's update."""

    @property
    def longest_s(self) -> float:
        """If nothing of it overlaps."""
        return self.compute_s + self.communication_s + self.host_s

    @property
    def shortest_s(self) -> float:
        """If computing hides all else, or is hidden."""
        return max(self.compute_s, self.communication_s, self.host_s)


def compute_time_s(shape: Shape, trained: Trained, layout: ZeroLayout, peak_flops: float, tokens: int) -> float:
    """Return the time in which a rank computes its samples of a step, each of `tokens` tokens."""
    flops = tuning_flops(shape, trained, tokens, layout.recompute).hardware
    return flops * tokens * layout.micro * layout.accumulation / (peak_flops * REACHED)


def project_step(shape: Shape, trained: Trained, layout: ZeroLayout, rates: Rates, tokens: int) -> StepTime | None:
    """Return a step's time for samples of `tokens` tokens; None where a link's rate is not known.

    A ring crosses the nodes' boundary over the network cards of all its devices on a node.
    """
    communication_s = 0.0
    for each in step_traffic(shape, trained, layout):
        rate = rates.in_node_bytes_s
        if crosses_nodes(each, layout) and rate is not None:
            network = rates.between_nodes_bytes_s
            rate = None if network is None else min(rate, network * layout.per_node)
        if rate is None:
            return None
        communication_s += each.sent_bytes / (rate * LINK)
    return StepTime(
        compute_s=compute_time_s(shape, trained, layout, rates.peak_flops, tokens),
        communication_s=communication_s,
        host_s=_host_time_s(shape, trained, layout),
    )


def _host_time_s(shape: Shape, trained: Trained, layout: ZeroLayout) -> float:
    """Return the time of copies between host and device, and of the host's update.

    The optimizer takes gradients and gives weights; offloaded weights are copied for each gather.
    """
    if layout.offload == "none":
        return 0.0
    own = trained.parameters(shape) / layout.world
    copied = BF16_BYTES * own * (layout.accumulation + 1)
    if layout.offload == "all":
        passed = (trained.frozen(shape) + trained.frozen_backward(shape)) / layout.world + 2 * own
        copied += layout.accumulation * BF16_BYTES * passed
    return copied / HOST_BYTES_S + UPDATE_BYTES * own * layout.per_node / HOST_MEMORY_BYTES_S
