"""Initial weights that are the same in every layout.

Each parameter is drawn at its full shape from a generator seeded by (seed, global name), then cut to this rank's part.
Megatron's own initial weights differ between pipeline and tensor layouts. A GPU draws other numbers than the CPU.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel

from efficientbench.architecture.model import ModelConfig
from efficientbench.basics.errors import ConfigError
from efficientbench.model.layers import QUANTILES

EXPERTS = "mlp.experts."
"""The part of a name that marks a parameter with the weights of several experts."""
CPU = torch.device("cpu")
WITH_ZEROS = ("bias", "core_attention.sinks")
"""Ends of the names of parameters that begin as 0; sinks as in transformers' GraniteSWA."""
OUTPUT_PROJECTIONS = ("linear_proj.weight", "linear_fc2.weight")
EMBEDDING = "embedding.word_embeddings.weight"
VOCABULARY_TABLES = (EMBEDDING, "output_layer.weight")
"""Parameters with one row per token, padded for tensor parallelism. A tied output projection is the embedding."""


def initialize(model: GPTModel, config: ModelConfig, seed: int, device: torch.device = CPU) -> None:
    """Fill every parameter of this stage: biases and sinks 0, norms 1 (zero-centred 0), weights N(0, init_std²).

    Output projections and learned positions have a smaller deviation; some parameters carry a law of their own.

    `device`: where weights are drawn: the stage's own device, or the CPU.
    """
    for name, parameter in global_parameters(model).items():
        with torch.no_grad():
            quantiles = getattr(parameter, QUANTILES, None)
            if name.endswith(WITH_ZEROS) and quantiles is None:
                parameter.zero_()
            elif parameter.dim() == 1 and quantiles is None:
                parameter.fill_(1.0)
            else:
                tp_rank, tp_size = tensor_parallel_rank(name)
                shape = full_shape(name, parameter, config, tp_size)
                if quantiles is not None:
                    full = quantiles(torch.rand(shape, generator=_generator(name, seed, device), device=device))
                elif EXPERTS in name:
                    full = torch.stack(
                        [_draw(expert, shape[1:], config, seed, device) for expert in expert_names(name, shape[0])]
                    )
                else:
                    full = _draw(name, shape, config, seed, device)
                parameter.copy_(shard(full, parameter, tp_rank, tp_size))


def set_weights(model: GPTModel, config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> None:
    """Fill every parameter and buffer of this stage from full tensors, as a checkpoint of any layout has them.

    `weights`: by global name, a separate name for each expert.

    Raises:
        ConfigError: a weight is missing or has another shape.
    """
    for name, parameter in global_tensors(model).items():
        tp_rank, tp_size = tensor_parallel_rank(name)
        shape, experts = full_shape(name, parameter, config, tp_size), EXPERTS in name
        names = expert_names(name, shape[0]) if experts else [name]
        found = [_checked(weights, each, shape[1:] if experts else shape) for each in names]
        with torch.no_grad():
            parameter.copy_(shard(torch.stack(found) if experts else found[0], parameter, tp_rank, tp_size))


def _checked(weights: Mapping[str, torch.Tensor], name: str, shape: list[int]) -> torch.Tensor:
    """Return the weight of this name and shape. Raises ConfigError if it is missing or has another shape."""
    try:
        weight = weights[name]
    except KeyError:
        raise ConfigError(f"the checkpoint lacks {name}: it is of another model, or incomplete") from None
    if list(weight.shape) != shape:
        raise ConfigError(f"the checkpoint's {name} has the shape {list(weight.shape)}, in this model it has {shape}")
    return weight


def global_name(model: GPTModel, name: str) -> str:
    """Return the global name of a module or parameter of this stage: its name in the model without stages."""
    layers = model.decoder.layers
    return re.sub(
        r"^decoder\.layers\.(\d+)\b", lambda found: f"decoder.layers.{layers[int(found[1])].layer_number - 1}", name
    )


def global_parameters(model: GPTModel) -> dict[str, torch.nn.Parameter]:
    """Return this stage's parameters by global name, which does not depend on the layout."""
    named = {}
    for name, parameter in model.named_parameters():
        name = global_name(model, name)
        if model.share_embeddings_and_output_weights:
            # The last stage's output table is a copy of the embedding.
            name = name.replace("output_layer.weight", EMBEDDING)
        named[name] = parameter
    return named


def global_tensors(model: GPTModel) -> dict[str, torch.Tensor]:
    """Return this stage's parameters and persistent buffers by global name; every rank of the stage has a whole buffer.

    These are the state of the model: what a checkpoint, an evaluation and an export take.
    """
    buffers = {
        global_name(model, f"{place}.{name}"): buffer
        for place, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }
    return {**global_parameters(model), **buffers}


def expert_names(name: str, local_experts: int) -> list[str]:
    """Return the global names of the experts whose weights this rank's parameter `name` holds."""
    first = parallel_state.get_expert_model_parallel_rank() * local_experts
    return [name.replace(EXPERTS, f"{EXPERTS}{first + index}.") for index in range(local_experts)]


def tensor_parallel_rank(name: str) -> tuple[int, int]:
    """Return this rank's number among the ranks that split the parameter, and the number of those ranks."""
    if EXPERTS in name:
        return (
            parallel_state.get_expert_tensor_parallel_rank(),
            parallel_state.get_expert_tensor_parallel_world_size(),
        )
    return (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )


def shard(full: torch.Tensor, parameter: torch.Tensor, tp_rank: int, tp_size: int) -> torch.Tensor:
    """Return this tensor-parallel rank's part of a full tensor, padded with zero rows to the parameter's shape."""
    dim = split_dim(parameter)
    if tp_size == 1 or dim is None:
        local = full
    else:
        # A stride of 2 is a gate and an up projection side by side: each is split, then their parts are joined.
        halves = full.chunk(getattr(parameter, "partition_stride", 1), dim=dim)
        local = torch.cat([_part(half, dim, tp_rank, tp_size) for half in halves], dim=dim)
    if local.shape == parameter.shape:
        return local
    padded = local.new_zeros(parameter.shape)
    padded[: local.shape[0]] = local
    return padded


def split_dim(parameter: torch.Tensor) -> int | None:
    """Return the dimension that tensor parallelism splits, as Megatron marks it; None for an unsplit parameter."""
    return int(getattr(parameter, "partition_dim", 0)) if getattr(parameter, "tensor_model_parallel", False) else None


def _part(full: torch.Tensor, dim: int, tp_rank: int, tp_size: int) -> torch.Tensor:
    size = math.ceil(full.shape[dim] / tp_size)
    start = min(tp_rank * size, full.shape[dim])
    return full.narrow(dim, start, min(size, full.shape[dim] - start))


def full_shape(name: str, parameter: torch.Tensor, config: ModelConfig, tp_size: int) -> list[int]:
    """Return the shape of the unsplit, unpadded parameter; for experts, [experts of this rank, …]."""
    shape = list(parameter.shape)
    dim = split_dim(parameter)
    if dim is not None:
        shape[dim] *= tp_size
    if name in VOCABULARY_TABLES:
        shape[0] = config.vocab_size
    return shape


def _draw(name: str, shape: list[int], config: ModelConfig, seed: int, device: torch.device) -> torch.Tensor:
    drawn = torch.randn(shape, generator=_generator(name, seed, device), device=device)
    return drawn.mul_(config.init_std / _divisor(name, config))


def _generator(name: str, seed: int, device: torch.device) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def _divisor(name: str, config: ModelConfig) -> float:
    if name.endswith(OUTPUT_PROJECTIONS):
        return math.sqrt(2 * config.layers)
    return config.own_view.position_variant.table_divisor if name == "position_table" else 1.0
