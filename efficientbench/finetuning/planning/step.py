"""The traffic between ranks in a fine-tuning's step, and the step's projected time, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from efficientbench.finetuning.planning.cost import BF16_BYTES, Trained, ZeroLayout, tuning_flops
from efficientbench.finetuning.planning.shapes import Shape

REACHED = 0.4
"""The share of a device's peak that matrix products reach; assumed, not measured."""
LINK = 0.8
"""The share of a link's rate that a collective reaches; assumed, not measured."""
HOST_BYTES_S = 16e9
"""The rate of copies of offloaded states between host and device; assumed, not measured."""

HOST_MEMORY_BYTES_S = 100e9
"""The bandwidth of a node's host memory, which its ranks share for updates on the host; assumed, not measured."""
UPDATE_BYTES = 28
"""AdamW's traffic per parameter: float32 master weight and moments read and written, bf16 gradient and weight."""


@dataclass(frozen=True)
class Rates:
    """The rates of a device and its links; None for a rate that is not known."""

    name: str
    peak_flops: float
    in_node_bytes_s: float | None = None
    between_nodes_bytes_s: float | None = None
    """A device's share of its node's network bandwidth."""


@dataclass(frozen=True)
class Sent:
    """A rank's collectives with one purpose, over a step."""

    purpose: str
    operation: Literal["all-gather", "reduce-scatter", "all-reduce"]
    ranks: int
    """The number of ranks in the group."""
    payload_bytes: float
    """The bytes of the full tensors, summed over the step."""

    @property
    def sent_bytes(self) -> float:
        """The bytes that a rank sends, and also receives: (n − 1) / n of the payload, twice that in an all-reduce."""
        share = (self.ranks - 1) / self.ranks
        return self.payload_bytes * share * (2 if self.operation == "all-reduce" else 1)


def step_traffic(shape: Shape, trained: Trained, layout: ZeroLayout) -> list[Sent]:
    """Return a rank's collectives in a step.

    In each micro-batch, stage 3 gathers all weights for the forward pass, gathers the weights of the backward pass
    again, and reduces the gradients (arXiv 1910.02054, section 7). With hpZ, gathers stay within its group: of frozen
    weights in both passes, because DeepSpeed renews only the secondary copies of trained weights after an update; of
    trained weights in the backward pass. Small tensors that stage 3 does not shard are counted as if gathered, too.
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
    """Return whether the group spans several nodes."""
    return sent.ranks > layout.per_node


@dataclass(frozen=True)
class StepTime:
    """The projected time of a step, by part."""

    compute_s: float
    communication_s: float
    host_s: float
    """The time of copies of offloaded states between host and device, and of the update on the host."""

    @property
    def longest_s(self) -> float:
        """The step's time if nothing overlaps."""
        return self.compute_s + self.communication_s + self.host_s

    @property
    def shortest_s(self) -> float:
        """The step's time if everything overlaps."""
        return max(self.compute_s, self.communication_s, self.host_s)


def compute_time_s(shape: Shape, trained: Trained, layout: ZeroLayout, peak_flops: float, tokens: int) -> float:
    """Return the time in which a rank computes its samples of a step, each with `tokens` tokens."""
    flops = tuning_flops(shape, trained, tokens, layout.recompute).hardware
    return flops * tokens * layout.micro * layout.accumulation / (peak_flops * REACHED)


def project_step(shape: Shape, trained: Trained, layout: ZeroLayout, rates: Rates, tokens: int) -> StepTime | None:
    """Return a step's time for samples of `tokens` tokens; None if a link's rate is not known.

    A ring uses the network cards of all devices of a node to cross nodes.
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
    """Return the time of copies between host and device, and of the update on the host.

    The host's optimizer receives gradients and returns weights; offloaded weights are copied for each gather.
    """
    if layout.offload == "none":
        return 0.0
    own = trained.parameters(shape) / layout.world
    copied = BF16_BYTES * own * (layout.accumulation + 1)
    if layout.offload == "all":
        passed = (trained.frozen(shape) + trained.frozen_backward(shape)) / layout.world + 2 * own
        copied += layout.accumulation * BF16_BYTES * passed
    return copied / HOST_BYTES_S + UPDATE_BYTES * own * layout.per_node / HOST_MEMORY_BYTES_S
