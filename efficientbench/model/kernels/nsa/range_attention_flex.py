"""Attention to consecutive keys by torch's FlexAttention, on NVIDIA GPUs.

Its uncompiled form was compared with the equations, and its windows and sinks on an H200 with `range_attention.py`.

N = batch × groups, S = sequence, G = query heads of a group, K = keys, D = head dimension.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from efficientbench.model.kernels import flex
from efficientbench.model.kernels.nsa.reach import Reach

NAME = flex.NAME
FUSES = True
"""Whether the choice of blocks uses compiled kernels on this device type."""
BLOCK = 128
"""Queries and keys of a block, which FlexAttention skips, masks or reads without a mask."""


def range_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, reach: Reach
) -> torch.Tensor:
    """Compute range_attention.range_attention."""
    return flex.compiled()(*_arguments(query, key, value), **_options(query, key, scale, reach)).transpose(1, 2)


def range_attention_with_sinks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor, scale: float, reach: Reach
) -> torch.Tensor:
    """Compute range_attention.range_attention with sinks [N, G]."""
    options = _options(query, key, scale, reach)
    return flex.compiled_with_sinks()(*_arguments(query, key, value), sinks.float()[..., None], **options).transpose(
        1, 2
    )


def range_attention_with_sums(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, reach: Reach
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute range_attention.range_attention, and the logarithms of the softmax's sums, [N, S, G] in float32."""
    out, log_sums = flex.compiled_with_sums()(*_arguments(query, key, value), **_options(query, key, scale, reach))
    return out.transpose(1, 2), log_sums.transpose(1, 2)


def _arguments(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return query.transpose(1, 2), key[:, None], value[:, None]


def _options(query: torch.Tensor, key: torch.Tensor, scale: float, reach: Reach) -> dict[str, Any]:
    mask = block_mask(reach, query.shape[1], key.shape[1], str(query.device))
    kernel_options = flex.kernel_options(query.device)
    return {"block_mask": mask, "scale": scale, "enable_gqa": True, "kernel_options": kernel_options}


@functools.lru_cache(maxsize=8)
def block_mask(reach: Reach, queries: int, keys: int, device: str) -> Any:
    """Return FlexAttention's mask: which blocks of keys a block of queries sees in part, and which in full.

    Like torch's create_block_mask, but without a tensor of all queries by all keys.
    """
    from torch.nn.attention.flex_attention import BlockMask

    first_key = torch.arange(0, keys, BLOCK)
    stop_key = first_key + BLOCK
    some, whole = [], []
    for start in range(0, queries, BLOCK):
        last = min(start + BLOCK, queries) - 1
        some.append((first_key < reach.last(last)) & (stop_key > reach.first(start)))
        full = (first_key >= reach.first(last)) & (stop_key <= min(reach.last(start), keys))
        # A last block with fewer than BLOCK queries is always masked.
        whole.append(full if start + BLOCK <= queries else torch.zeros_like(full))
    seen, full = torch.stack(some), torch.stack(whole)
    return BlockMask.from_kv_blocks(
        *_ordered(seen & ~full, device),
        *_ordered(full, device),
        BLOCK_SIZE=BLOCK,
        mask_mod=lambda b, h, i, j: reach.sees(i, j),
        seq_lengths=(queries, keys),
    )


def _ordered(blocks: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's number of key blocks, [1, 1, rows], and block numbers, those first, [1, 1, rows, columns]."""
    numbers = blocks.int().argsort(dim=-1, descending=True, stable=True)
    parts = (blocks.sum(dim=-1), numbers)
    count, order = (part.to(device, torch.int32)[None, None].contiguous() for part in parts)
    return count, order
