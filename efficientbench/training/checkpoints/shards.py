"""The rectangles of whole tensors that this rank has, by names and places that no layout changes.

Checkpoints know whole parameters by their global names, so that any layout can read what another wrote. A rank's part
of a parameter lies in one flat run of memory, whole or (the distributed optimizer's states) cut anywhere. It consists
of a few rectangles of the whole parameter, each a contiguous view.
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
    global_parameters,
    split_dim,
    tensor_parallel_rank,
)

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

Shape = tuple[int, ...]
ON_SEVERAL_STAGES = (EMBEDDING, "position_table")
"""Parameters of which several pipeline stages have a copy; the first stage writes them."""


@dataclass(frozen=True)
class Shard:
    """A rectangle of a whole tensor, and this rank's storage of it."""

    name: str
    """Of the whole tensor, the same in every layout."""
    whole: Shape
    """The whole tensor's shape."""
    offset: Shape
    """Where the rectangle begins in the whole tensor."""
    tensor: torch.Tensor
    """A view of what the model or the optimizer uses."""


class Block(NamedTuple):
    """A rectangle of a whole parameter that lies in one run within this rank's part of the parameter."""

    name: str
    """In the whole model; the weights of each expert have names of their own."""
    whole: Shape
    """The whole parameter's shape."""
    offset: Shape
    """Where the rectangle begins in the whole parameter."""
    shape: Shape
    """Of the rectangle."""
    begin: int
    """Where the rectangle begins in this rank's part, in elements."""


@dataclass(frozen=True)
class ShardedParameter:
    """One parameter of this rank, and where its elements lie in the whole model."""

    parameter: torch.nn.Parameter
    """This rank's part."""
    blocks: list[Block]
    """All elements of the part, without padding."""
    writes_weight: bool
    """Whether this rank writes the weight: of equal copies on several ranks or stages only one is written."""
    writes_own_states: bool
    """Whether this rank writes optimizer states that data-parallel ranks share out; each of them writes its own."""

    def shards(self, prefix: str, storage: torch.Tensor, begin: int = 0) -> Iterator[Shard]:
        """Yield the rectangles within a storage that holds elements of this part from `begin` on.

        Args:
            prefix: goes before the parameter's name.
            storage: any shape; elements in the order of the part.
            begin: in elements of the part.
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
    """Return all parameters of this rank's stages."""
    found = []
    for stage in stages:
        for name, parameter in global_parameters(stage).items():
            tp_rank, _ = tensor_parallel_rank(name)
            dp_rank = (
                parallel_state.get_expert_data_parallel_rank()
                if EXPERTS in name
                else parallel_state.get_data_parallel_rank(with_context_parallel=True)
            )
            is_copy = split_dim(parameter) is None and tp_rank > 0
            first = not is_copy and (name not in ON_SEVERAL_STAGES or stage.pre_process)
            found.append(ShardedParameter(parameter, _blocks(name, parameter, model), first and dp_rank == 0, first))
    return found


def _blocks(name: str, parameter: torch.nn.Parameter, model: ModelConfig) -> list[Block]:
    """Return where this rank's part lies in the whole model: the inverse of `initial_weights.shard`.

    Rows that only pad the part are left out.
    """
    tp_rank, tp_size = tensor_parallel_rank(name)
    whole, local, dim = full_shape(name, parameter, model, tp_size), list(parameter.shape), split_dim(parameter)
    names, strides = [name], 1 if dim is None else int(getattr(parameter, "partition_stride", 1))
    rank = 0 if dim is None else tp_rank
    dim = dim or 0
    if EXPERTS in name:
        # One tensor has the weights of all experts of this rank; a checkpoint has a tensor for each expert.
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
    """Cut elements `begin` to `end` of a row-major tensor into rectangles, in order: (offset, shape) of each."""
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
