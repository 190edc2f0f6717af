"""Context parallelism: the ranks of a group split each sequence, and gather one another's keys and values.

A sequence is cut into 2 · CP chunks, and each rank holds an early and a late one. A late chunk sees many keys and an
early one few, so all ranks compute equally much.
S = sequence, B = micro-batch, D = head dimension.
"""

from __future__ import annotations

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region

from efficientbench.config.layout import context_chunks
from efficientbench.model.kernels.causal_attention import AttentionKernel, causal_attention


def positions(tokens: int, device: torch.device) -> torch.Tensor:
    """Return the positions, within the sequence, of the `tokens` tokens that this rank holds: [tokens]."""
    size = parallel_state.get_context_parallel_world_size()
    if size == 1:
        return torch.arange(tokens, device=device)
    chunk = tokens // 2
    return torch.cat([torch.arange(index * chunk, (index + 1) * chunk, device=device) for index in _own_chunks(size)])


def is_shared() -> bool:
    """Return whether several ranks share each sequence."""
    return bool(parallel_state.get_context_parallel_world_size() > 1)


def spans(sequence: int) -> list[tuple[int, int]]:
    """Return the first position, and the one after the last, of each run of tokens that this rank holds."""
    size = parallel_state.get_context_parallel_world_size()
    if size == 1:
        return [(0, sequence)]
    chunk = sequence // (2 * size)
    return [(index * chunk, (index + 1) * chunk) for index in _own_chunks(size)]


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    kernel: AttentionKernel = causal_attention,
) -> torch.Tensor:
    """Compute attention of this rank's queries over all keys and values of the sequence.

    Args:
        query: [S / CP, B, heads, D]
        key: [S / CP, B, groups, D]
        value: [S / CP, B, groups, E]
        scale: factor on the scores.
        kernel: takes the last queries of the tokens whose keys and values it gets.

    Returns:
        [S / CP, B, heads · E]
    """
    size = parallel_state.get_context_parallel_world_size()
    key, value = gather_sequence(key), gather_sequence(value)
    chunk = key.shape[0] // (2 * size)
    outputs = [
        kernel(queries, key[: (index + 1) * chunk], value[: (index + 1) * chunk], scale)
        for queries, index in zip(query.chunk(2), _own_chunks(size), strict=True)
    ]
    return torch.cat(outputs)


def _own_chunks(size: int) -> tuple[int, int]:
    return context_chunks(parallel_state.get_context_parallel_rank(), size)


def gather_sequence(x: torch.Tensor) -> torch.Tensor:
    """Gather [S / CP, ...] into [S, ...] in the sequence's order; the gradient is reduced and scattered over ranks."""
    group = parallel_state.get_context_parallel_group()
    gathered = gather_from_sequence_parallel_region(x, tensor_parallel_output_grad=True, group=group)
    # Rank r sends chunks r and 2 · CP - 1 - r: from one rank to the next, early chunks rise and late ones fall.
    parts = gathered.chunk(2 * group.size())
    return torch.cat([*parts[::2], *parts[::-2]])
