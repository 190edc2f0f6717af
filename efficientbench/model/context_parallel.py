"""Context parallelism: the ranks of a group share each sequence, and gather one another's keys and values.

A sequence is cut into 2 · CP chunks, of which each rank holds an early and a late one.
S = sequence, B = micro-batch, D = head dimension.
"""

from __future__ import annotations

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region

from efficientbench.config.layout import context_chunks
from efficientbench.model.kernels.attention import causal_attention
from efficientbench.model.kernels.attention_choice import AttentionKernel


def positions(tokens: int, device: torch.device) -> torch.Tensor:
    """Positions in the sequence [tokens] of the `tokens` that this rank holds."""
    size = parallel_state.get_context_parallel_world_size()
    if size == 1:
        return torch.arange(tokens, device=device)
    chunk = tokens // 2
    return torch.cat([torch.arange(index * chunk, (index + 1) * chunk, device=device) for index in _own(size)])


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, kernel: AttentionKernel
) -> torch.Tensor:
    """`causal_attention` of this rank's queries over the keys and values of the whole sequence.

    Args:
        query: [S / CP, B, heads, D]
        key: [S / CP, B, groups, D]
        value: [S / CP, B, groups, E]
        scale: factor on the scores.
        kernel: where one rank holds the whole sequence; chunks go through `causal_attention`.

    Returns:
        [S / CP, B, heads · E]
    """
    size = parallel_state.get_context_parallel_world_size()
    if size == 1:
        return kernel(query, key, value, scale)
    key, value = _gather_sequence(key), _gather_sequence(value)
    chunk = key.shape[0] // (2 * size)
    outputs = [
        causal_attention(queries, key[: (index + 1) * chunk], value[: (index + 1) * chunk], scale)
        for queries, index in zip(query.chunk(2), _own(size), strict=True)
    ]
    return torch.cat(outputs)


def _own(size: int) -> tuple[int, int]:
    return context_chunks(parallel_state.get_context_parallel_rank(), size)


def _gather_sequence(x: torch.Tensor) -> torch.Tensor:
    """[S / CP, ...] → [S, ...] in the sequence's order; the gradient is summed over ranks, and cut again."""
    group = parallel_state.get_context_parallel_group()
    gathered = gather_from_sequence_parallel_region(x, tensor_parallel_output_grad=True, group=group)
    # Rank after rank, an early and a late chunk: the early ones rise, the late ones fall.
    parts = gathered.chunk(2 * group.size())
    return torch.cat([*parts[::2], *parts[::-2]])
