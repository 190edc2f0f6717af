"""This rank's rectangles of full tensors, with names and offsets that do not depend on the layout.

Checkpoints store full parameters by global name, so that any layout can read what another wrote. A rank's part of a
parameter is one contiguous range of memory; the distributed optimizer's states are a range cut from it anywhere. Either
consists of a few rectangles of the full parameter, each a contiguous view.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from megatron.core import parallel_state

from efficientbench.architecture.model import ModelConfig
from efficientbench.model.initial_weights import (
    EMBEDDING,
    EXPERTS,
    expert_names,
    full_shape,
    global_tensors,
    split_dim,
    tensor_parallel_rank,
)
from efficientbench.model.moe import routers

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

Shape = tuple[int, ...]
ON_SEVERAL_STAGES = (EMBEDDING, "position_table")
"""Parameters with copies on several pipeline stages; the first stage writes them."""


@dataclass(frozen=True)
class Shard:
    """A rectangle of a full tensor, and this rank's storage of it."""

    name: str
    """The full tensor's name, the same in every layout."""
    whole: Shape
    """The full tensor's shape."""
    offset: Shape
    """The rectangle's first index in the full tensor."""
    tensor: torch.Tensor
    """A view of the model's or the optimizer's tensor."""


class Block(NamedTuple):
    """A rectangle of a full parameter that is contiguous within this rank's part of the parameter."""

    name: str
    """The parameter's global name; the weights of each expert have separate names."""
    whole: Shape
    """The full parameter's shape."""
    offset: Shape
    """The rectangle's first index in the full parameter."""
    shape: Shape
    """The rectangle's shape."""
    begin: int
    """The position of the rectangle's first element in this rank's part."""


@dataclass(frozen=True)
class ShardedParameter:
    """One parameter or buffer of this rank, and the place of its elements in the full model."""

    parameter: torch.Tensor
    """This rank's part; optimizers have states of parameters alone."""
    blocks: list[Block]
    """Rectangles with all elements of the part, without padding."""
    writes_weight: bool
    """Whether this rank writes the weight: only one of equal copies on several ranks or stages is written."""
    writes_own_states: bool
    """Whether this rank writes its part of the optimizer states, if data-parallel ranks split them."""
    shares: torch.Tensor | None = None
    """The `shares` of the router whose weight this is; None for other weights."""

    def shards(self, prefix: str, storage: torch.Tensor, begin: int = 0) -> Iterator[Shard]:
        """Yield the rectangles within a storage that has the elements of this part from `begin` on.

        Args:
            prefix: prefix of the parameter's name.
            storage: a tensor of any shape, with elements in the order of the part.
            begin: the position of the storage's first element in the part.
        """
        flat = storage.detach().view(-1)
        end = begin + flat.numel()
        for block in self.blocks:
            low, high = max(begin - block.begin, 0), min(end - block.begin, math.prod(block.shape))
            position = block.begin + low - begin
            for offset, shape in rectangles(block.shape, low, high):
                count = math.prod(shape)
                in_whole = tuple(a + b for a, b in zip(block.offset, offset, strict=True))
                yield Shard(
                    f"{prefix}.{block.name}", block.whole, in_whole, flat[position : position + count].view(shape)
                )
                position += count


def sharded_parameters(stages: list[GPT], model: ModelConfig) -> list[ShardedParameter]:
    """Return all parameters and buffers of this rank's stages."""
    found = []
    for stage in stages:
        shares: dict[torch.Tensor, torch.Tensor | None] = {router.weight: router.shares for router in routers(stage)}
        for name, parameter in global_tensors(stage).items():
            tp_rank, _ = tensor_parallel_rank(name)
            dp_rank = (
                parallel_state.get_expert_data_parallel_rank()
                if EXPERTS in name
                else parallel_state.get_data_parallel_rank(with_context_parallel=True)
            )
            is_copy = split_dim(parameter) is None and tp_rank > 0
            first = not is_copy and (name not in ON_SEVERAL_STAGES or stage.pre_process)
            blocks = _blocks(name, parameter, model)
            found.append(ShardedParameter(parameter, blocks, first and dp_rank == 0, first, shares.get(parameter)))
    return found


def _blocks(name: str, parameter: torch.Tensor, model: ModelConfig) -> list[Block]:
    """Return the rectangles of this rank's part in the full model: the inverse of `initial_weights.shard`.

    Rows of padding are skipped.
    """
    tp_rank, tp_size = tensor_parallel_rank(name)
    whole, local, dim = full_shape(name, parameter, model, tp_size), list(parameter.shape), split_dim(parameter)
    names, strides = [name], 1 if dim is None else int(getattr(parameter, "partition_stride", 1))
    rank = 0 if dim is None else tp_rank
    dim = dim or 0
    if EXPERTS in name:
        # One parameter has the weights of all experts of this rank; a checkpoint has a tensor for each expert.
        names = expert_names(name, local[0])
        whole, local, dim = whole[1:], local[1:], dim - 1
    # A stride of 2 is a gate and an up projection side by side, each of which is split.
    assert strides == 1 or dim == 0, f"{name}: its parts do not lie in one run each"
    found, begin = [], 0
    for each in names:
        for stride in range(strides):
            of_all, of_rank = whole[dim] // strides, local[dim] // strides
            first = min(rank * of_rank, of_all)
            shape, offset = list(local), [0] * len(local)
            shape[dim], offset[dim] = min(of_rank, of_all - first), stride * of_all + first
            if shape[dim]:
                found.append(Block(each, tuple(whole), tuple(offset), tuple(shape), begin))
            begin += math.prod(local) // strides
    return found


def rectangles(shape: Shape, begin: int, end: int) -> Iterator[tuple[Shape, Shape]]:
    """Cut elements `begin` to before `end` of a row-major tensor into rectangles; yield (offset, shape) in order."""
    if begin >= end:
        return
    if len(shape) == 1:
        yield (begin,), (end - begin,)
        return
    inner = math.prod(shape[1:])
    row, behind = divmod(begin, inner)
    if behind:
        stop = min(end, (row + 1) * inner)
        for offset, size in rectangles(shape[1:], behind, stop - row * inner):
            yield (row, *offset), (1, *size)
        begin, row = stop, row + 1
    rows = (end - begin) // inner
    if rows > 0:
        yield (row, *[0] * (len(shape) - 1)), (rows, *shape[1:])
    if begin + rows * inner < end:
        for offset, size in rectangles(shape[1:], 0, end - begin - rows * inner):
            yield (row + rows, *offset), (1, *size)
