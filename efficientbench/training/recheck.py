"""Compute one micro-batch twice and compare the bits, to find hardware that sometimes computes wrong numbers.

In both computations every rank records a digest of each module's inputs and outputs, of the loss, and of its own
gradients before any reduction. A wrong number spreads from its rank to all ranks that work on the same sequences: the
rank where bits differ first, in the order of computation, is the suspect. A device that makes the same error twice is
not found.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.tensor_parallel.random import _fork_rng

from efficientbench.devices.registry import device_called
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.metrics.records.record_parts import Mismatch
from efficientbench.model.initial_weights import global_name, global_parameters
from efficientbench.model.moe import take_routing

BLOCK = 2**22
"""Values of a digest that are widened to 64 bits at once."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of a value → the integer dtype of the same size."""
FORWARD, BACKWARD = range(2)


@dataclass(frozen=True)
class Place:
    """A place in the computation of a micro-batch."""

    order: tuple[int, int, int]
    """Forward or backward, the stage in that direction, and a running number: earlier places are smaller. Ranks of one
    stage count alike."""
    what: str
    """The recorded tensor, for the message."""


@dataclass(frozen=True)
class Difference:
    """The first place at which a rank's second computation had other bits."""

    place: Place
    replica: int
    """The rank's replica. Replicas send each other nothing before gradients are reduced."""
    device: str
    """The rank's host and device, for the message."""


class _Notes:
    """The digests of one computation, with their places."""

    def __init__(self, stages: Sequence[DistributedDataParallel]) -> None:
        size = parallel_state.get_pipeline_model_parallel_world_size()
        rank = parallel_state.get_pipeline_model_parallel_rank()
        # By their numbers among all stages of the model.
        self.stages = {rank + virtual * size: stage for virtual, stage in enumerate(stages)}
        self.places: list[Place] = []
        self.digests: list[torch.Tensor] = []

    @contextlib.contextmanager
    def calls(self) -> Iterator[None]:
        """Record inputs and outputs of every module without submodules, within the block."""
        handles = [
            module.register_forward_hook(
                partial(self._called, number, global_name(stage.module, name)), with_kwargs=True
            )
            for number, stage in self.stages.items()
            for name, module in stage.module.named_modules()
            if not any(module.children())
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def results(self, loss: torch.Tensor) -> None:
        """Record the loss, and all gradients from the last layer to the first."""
        last = parallel_state.get_pipeline_model_parallel_world_size() * len(self.stages)
        self._add(FORWARD, last, "the loss", loss)
        for number, stage in self.stages.items():
            for name, parameter in reversed(global_parameters(stage.module).items()):
                if parameter.requires_grad:
                    gradient = parameter.main_grad  # type: ignore[attr-defined]
                    self._add(BACKWARD, -number, f"the gradient of {name}", gradient)

    def _called(
        self, stage: int, name: str, module: torch.nn.Module, inputs: Any, named: dict[str, Any], output: Any
    ) -> None:
        for what, values in (("input", (*inputs, *named.values())), ("output", output)):
            for value in _tensors(values):
                self._add(FORWARD, stage, f"the {what} of {name}", value)

    def _add(self, direction: int, stage: int, what: str, value: torch.Tensor) -> None:
        self.places.append(Place((direction, stage, len(self.places)), what))
        self.digests.append(digest(value))


def recheck(
    step: int, stages: Sequence[DistributedDataParallel], compute: Callable[[], torch.Tensor], device: torch.device
) -> tuple[Mismatch, ...]:
    """Compute a micro-batch twice; return the ranks at which bits first differed. All ranks call this together.

    Weights, random generators, module buffers and routers' counts stay unchanged, and no gradient is reduced. The
    gradient buffers have the micro-batch's gradients afterwards, which the next step zeroes.

    Args:
        step: the last completed step.
        stages: this rank's stages.
        compute: runs the micro-batch's forward and backward pass, and returns this rank's loss.
        device: this rank's device.
    """
    first, second = (_compute(stages, compute) for _ in range(2))
    place = first_difference(first, second)
    expert_parallel = parallel_state.get_expert_model_parallel_world_size() > 1
    replica = 0 if expert_parallel else parallel_state.get_data_parallel_rank()
    found = None if place is None else Difference(place, replica, _describe(device))
    return suspects(step, gather(found, Difference | None))


def _compute(stages: Sequence[DistributedDataParallel], compute: Callable[[], torch.Tensor]) -> list[tuple[Place, int]]:
    notes = _Notes(stages)
    with _traceless(stages), notes.calls():
        notes.results(compute())
    return list(zip(notes.places, torch.stack(notes.digests).tolist(), strict=True))


def first_difference(first: Sequence[tuple[Place, int]], second: Sequence[tuple[Place, int]]) -> Place | None:
    """Return the earliest place whose digests differ between two computations; None if all are equal."""
    differing = (one[0] for one, other in zip(first, second, strict=False) if one != other)
    return min(differing, key=lambda place: place.order, default=None)


def suspects(step: int, found: Sequence[Difference | None]) -> tuple[Mismatch, ...]:
    """Return every replica's ranks with the earliest difference; `found`: each rank's difference, in rank order."""
    differing = [(rank, each) for rank, each in enumerate(found) if each is not None]
    first = {
        replica: min(each.place.order for _, each in differing if each.replica == replica)
        for replica in {each.replica for _, each in differing}
    }
    return tuple(
        Mismatch(step, rank, each.device, each.place.what)
        for rank, each in differing
        if each.place.order == first[each.replica]
    )


def digest(values: torch.Tensor) -> torch.Tensor:
    """Return a digest of the values' bits, [] int64 on the device, which surely differs if one value differs.

    A block of BLOCK values has the sum Σ (2i + 1) xᵢ mod 2⁶⁴; block sums are added up with powers of 31. An odd factor
    times a change is never 0; changes of several values cancel only by chance.
    """
    bits = values.detach().reshape(-1).view(INTEGERS[values.element_size()])
    factors = torch.arange(1, 2 * min(BLOCK, bits.numel()) + 1, 2, device=bits.device)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for part in bits.split(BLOCK):
        total = 31 * total + (part.long() * factors[: part.numel()]).sum()
    return total


@contextlib.contextmanager
def _traceless(stages: Sequence[DistributedDataParallel]) -> Iterator[None]:
    """Let a forward and backward pass change nothing but the gradient buffers, which are not reduced."""
    # Megatron's schedules would call these to reduce gradients after the last micro-batch.
    sending = [(stage.config.no_sync_func, stage.config.finalize_model_grads_func) for stage in stages]
    buffers = [(buffer, buffer.clone()) for stage in stages for buffer in stage.module.buffers()]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_fork_rng())
        for stage in stages:
            stage.zero_grad_buffer()
            stage.config.no_sync_func = stage.config.finalize_model_grads_func = None
            # Megatron reduces a bucket in the last micro-batch alone; within no_sync no micro-batch is the last.
            stack.enter_context(stage.no_sync())
        yield
    for stage, (no_sync, finalize) in zip(stages, sending, strict=True):
        stage.config.no_sync_func, stage.config.finalize_model_grads_func = no_sync, finalize
        take_routing(stage.module)
    for buffer, before in buffers:
        buffer.copy_(before)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)


def _describe(device: torch.device) -> str:
    kind, index = device_called(device.type), device.index or 0
    return f"{socket.gethostname()}, {kind.type} {kind.visible(os.environ)[index]} ({kind.names()[index]})"
