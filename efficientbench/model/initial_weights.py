"""Initial weights that are the same in every layout.

Each parameter is drawn at its full shape from a generator seeded by (seed, global name), then cut to this rank's part:
megatron's own would differ between pipeline and tensor layouts.
"""

from __future__ import annotations

import hashlib
import math
import re

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel

from efficientbench.config.model import ModelConfig

# Before the parameters of a layer's experts, which lie side by side in one tensor.
EXPERTS = "mlp.experts."
OUTPUT_PROJECTIONS = ("linear_proj.weight", "linear_fc2.weight")


def initialize(model: GPTModel, config: ModelConfig, seed: int) -> None:
    """Fill every parameter of this stage: weights N(0, init_std), output projections and learned positions less, biases
    0, norms 1."""
    for name, parameter in global_parameters(model).items():
        with torch.no_grad():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                tp_rank, tp_size = tensor_parallel_rank(name)
                shape = full_shape(name, parameter, config, tp_size)
                if EXPERTS in name:
                    full = torch.stack(
                        [_draw(expert, shape[1:], config, seed) for expert in expert_names(name, shape[0])]
                    )
                else:
                    full = _draw(name, shape, config, seed)
                parameter.copy_(shard(full, parameter, tp_rank, tp_size))


def global_parameters(model: GPTModel) -> dict[str, torch.nn.Parameter]:
    """This stage's parameters by the names that they have in the whole model, where the stage does not matter."""
    numbers = {index: layer.layer_number - 1 for index, layer in enumerate(model.decoder.layers)}
    named = {}
    for name, parameter in model.named_parameters():
        name = re.sub(r"^decoder\.layers\.(\d+)\.", lambda found: f"decoder.layers.{numbers[int(found[1])]}.", name)
        # The last stage's copy of the tied embedding.
        named[name.replace("output_layer.weight", "embedding.word_embeddings.weight")] = parameter
    return named


def expert_names(name: str, local_experts: int) -> list[str]:
    """Names in the whole model of the experts whose weights this rank holds together under `name`."""
    first = parallel_state.get_expert_model_parallel_rank() * local_experts
    return [name.replace(EXPERTS, f"{EXPERTS}{first + index}.") for index in range(local_experts)]


def tensor_parallel_rank(name: str) -> tuple[int, int]:
    """This rank's number among the ranks that split the parameter, and how many they are."""
    if EXPERTS in name:
        return (
            parallel_state.get_expert_tensor_parallel_rank(),
            parallel_state.get_expert_tensor_parallel_world_size(),
        )
    return (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )


def shard(full: torch.Tensor, parameter: torch.nn.Parameter, tp_rank: int, tp_size: int) -> torch.Tensor:
    """This tensor-parallel rank's part of a full tensor, padded with zero rows where the parameter is."""
    dim = split_dim(parameter)
    if tp_size == 1 or dim is None:
        local = full
    else:
        # A stride of 2 is a gate and an up projection side by side: each is split, and the parts joined again.
        pieces = full.chunk(getattr(parameter, "partition_stride", 1), dim=dim)
        local = torch.cat([_part(piece, dim, tp_rank, tp_size) for piece in pieces], dim=dim)
    if local.shape == parameter.shape:
        return local
    padded = local.new_zeros(parameter.shape)
    padded[: local.shape[0]] = local
    return padded


def split_dim(parameter: torch.nn.Parameter) -> int | None:
    """The dimension that tensor parallelism splits, as megatron marks it; None where every rank has the whole."""
    return int(getattr(parameter, "partition_dim", 0)) if getattr(parameter, "tensor_model_parallel", False) else None


def _part(piece: torch.Tensor, dim: int, tp_rank: int, tp_size: int) -> torch.Tensor:
    size = math.ceil(piece.shape[dim] / tp_size)
    start = min(tp_rank * size, piece.shape[dim])
    return piece.narrow(dim, start, min(size, piece.shape[dim] - start))


def full_shape(name: str, parameter: torch.nn.Parameter, config: ModelConfig, tp_size: int) -> list[int]:
    shape = list(parameter.shape)
    dim = split_dim(parameter)
    if dim is not None:
        shape[dim] *= tp_size
    if name == "embedding.word_embeddings.weight":
        shape[0] = config.vocab_size
    return shape


def _draw(name: str, shape: list[int], config: ModelConfig, seed: int) -> torch.Tensor:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.randn(shape, generator=generator).mul_(config.init_std / _divisor(name, config))


def _divisor(name: str, config: ModelConfig) -> float:
    if name.endswith(OUTPUT_PROJECTIONS):
        return math.sqrt(2 * config.layers)
    # GPT-2's code draws positions at half the spread of tokens, which they are added to.
    return 2.0 if name == "position_table" and config.position.kind == "learnable_absolute" else 1.0
