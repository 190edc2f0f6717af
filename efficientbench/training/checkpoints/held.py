"""What this rank holds of the whole model: each parameter's part, by global names and places in whole parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from megatron.core import parallel_state

from efficientbench.config.model import ModelConfig
from efficientbench.model.initial_weights import (
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
HELD_BY_SEVERAL_STAGES = ("embedding.word_embeddings.weight", "position_table")


@dataclass(frozen=True)
class Block:
    """A rectangle of a whole parameter that lies in one run within this rank's part of it."""

    name: str
    """In the whole model; each expert's weight has one of its own."""
    whole: Shape
    """The whole parameter's shape."""
    offset: Shape
    """Where the rectangle begins in the whole parameter."""
    shape: Shape
    begin: int
    """Where it begins in this rank's part, in elements."""


@dataclass(frozen=True)
class Held:
    """One parameter as this rank holds it."""

    parameter: torch.nn.Parameter
    parts: list[Block]
    first_copy: bool
    """Whether no other rank or stage writes the same elements of the weight."""
    first_stage: bool
    """The same, but for data-parallel ranks: of states that these share out, each rank writes its own."""


def held_parameters(stages: list[GPT], model: ModelConfig) -> list[Held]:
    """All parameters of this rank's stages."""
    found = []
    for stage in stages:
        for name, parameter in global_parameters(stage).items():
            whole_on_each = split_dim(parameter) is None
            if EXPERTS in name:
                tp_rank, dp_rank = (
                    parallel_state.get_expert_tensor_parallel_rank(),
                    parallel_state.get_expert_data_parallel_rank(),
                )
            else:
                tp_rank = parallel_state.get_tensor_model_parallel_rank()
                dp_rank = parallel_state.get_data_parallel_rank(with_context_parallel=True)
            first = not (whole_on_each and tp_rank) and (name not in HELD_BY_SEVERAL_STAGES or stage.pre_process)
            found.append(Held(parameter, blocks(name, parameter, model), first and dp_rank == 0, first))
    return found


def blocks(name: str, parameter: torch.nn.Parameter, model: ModelConfig) -> list[Block]:
    """What this rank's part of a parameter is in the whole model: the inverse of `initial_weights.shard`.

    Rows that only pad the part are left out.
    """
    tp_rank, tp_size = tensor_parallel_rank(name)
    whole, held, dim = full_shape(name, parameter, model, tp_size), list(parameter.shape), split_dim(parameter)
    names, strides = [name], 1 if dim is None else int(getattr(parameter, "partition_stride", 1))
    rank = 0 if dim is None else tp_rank
    dim = dim or 0
    if EXPERTS in name:
        names = expert_names(name, held[0])
        whole, held, dim = whole[1:], held[1:], dim - 1
    # A stride of 2 is a gate and an up projection side by side, each of which is split.
    assert strides == 1 or dim == 0, f"{name}: its parts do not lie in one run each"
    found, begin = [], 0
    for each in names:
        for stride in range(strides):
            of_all, of_rank = whole[dim] // strides, held[dim] // strides
            first = min(rank * of_rank, of_all)
            shape, offset = list(held), [0] * len(held)
            shape[dim], offset[dim] = min(of_rank, of_all - first), stride * of_all + first
            if shape[dim]:
                found.append(Block(each, tuple(whole), tuple(offset), tuple(shape), begin))
            begin += math.prod(held) // strides
    return found
