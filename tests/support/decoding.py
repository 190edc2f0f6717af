"""Decoding in parts from a cache: in this process, and by the ranks of a pool in some layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from efficientbench.config.quantization import Quantization
from efficientbench.config.schema import RunConfig
from efficientbench.costs.quantization import quantized_matrices
from efficientbench.devices.quantized import form_of

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT


@dataclass(frozen=True)
class Decoded:
    """On one rank."""

    whole: torch.Tensor
    """Logits [B, S, V] of one forward pass."""
    parts: list[torch.Tensor]
    """The same, part after part from a cache, one way after the other."""
    cache_bytes: int
    formula_bytes: int
    sampled: list[int]
    """Tokens that continue two prompts."""


def decode(
    config: RunConfig,
    tokens: torch.Tensor,
    ways: list[list[int]],
    change: Callable[[GPT, RunConfig], None] | None = None,
) -> Decoded:
    """Decode tokens [B, S] in parts of so many, in each of several ways, and sample from the same model.

    `change` changes the weights of the model first.
    """
    from efficientbench.costs.model import cache_bytes
    from efficientbench.generation.decoder import whole_logits
    from efficientbench.generation.generate import generate
    from efficientbench.generation.sampling import Sampling
    from efficientbench.model.cache import Cache
    from efficientbench.model.gpt import build_stages
    from efficientbench.training import groups

    with groups.model_parallel(config.parallel, config.training.seed), torch.no_grad():
        [model] = build_stages(config, torch.device("cpu"))
        model.eval()
        if change is not None:
            change(model, config)
        whole = whole_logits(model, model(tokens))
        decoded = [from_cache(model, tokens, parts) for parts in ways]
        steps = generate(model, [tokens[0, :9].tolist(), tokens[1, :4].tolist()], Sampling(1.0, seed=7), 12)
        sampled = [each.token for emitted in steps for each in emitted]
        if config.parallel.ep > 1:
            # The first rank's row ends at once, and the other needs its experts to the end.
            stop = range(config.model.vocab_size) if dist.get_rank() == 0 else ()
            for _ in generate(model, [tokens[0, :5].tolist()], Sampling(), 12, stop):
                pass
        formula = len(tokens) * cache_bytes(config.model, tokens.shape[1], config.training.dtype, config.parallel.tp)
        return Decoded(whole, decoded, Cache(model, *tokens.shape).bytes, formula, sampled)


def in_int8(model: GPT, config: RunConfig) -> None:
    """Quantize what this rank holds."""
    from efficientbench.model.quantize import quantize

    quantize(model, config.model, form_of(Quantization(weights="int8"), "cpu", config.training.dtype))


def with_rounded_parts(model: GPT, config: RunConfig) -> None:
    """Give a whole model the values of int8 weights of which two tensor-parallel ranks round a part each."""
    from megatron.core.tensor_parallel import RowParallelLinear
    from oracles.quantized import dequantized

    for layer, kind in zip(model.decoder.layers, config.model.layer_kinds, strict=True):
        for name in quantized_matrices(config.model.views[kind]):
            weight = layer.get_parameter(name).data
            split = int(isinstance(layer.get_submodule(name.rpartition(".")[0]), RowParallelLinear))
            weight.copy_(torch.cat([dequantized(part, 8)[0] for part in weight.chunk(2, dim=split)], dim=split))


def from_cache(model: GPT, tokens: torch.Tensor, parts: list[int]) -> torch.Tensor:
    """The logits of tokens [B, S], computed in parts of so many tokens."""
    from efficientbench.generation.decoder import whole_logits
    from efficientbench.model.cache import Cache

    cache, logits = Cache(model, *tokens.shape), []
    with torch.no_grad(), cache.bound():
        for part in tokens.split(parts, dim=1):
            cache.counts.fill_(part.shape[1])
            logits.append(whole_logits(model, model(part)))
            cache.advance()
    return torch.cat(logits, dim=1)


def in_parts(length: int, prefill: int, chunk: int) -> list[int]:
    """A first part of `prefill` tokens, then `chunk` at a time, to the end of a sequence."""
    chunks, rest = divmod(length - prefill, chunk)
    return [prefill, *[chunk] * chunks, *[rest] * bool(rest)]
