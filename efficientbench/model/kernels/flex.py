"""torch's FlexAttention, compiled: where it runs, and its causal mask."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

NAME = "torch flex_attention"
FlexAttention = Callable[..., torch.Tensor]
FlexAttentionWithSums = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""Takes the arguments of torch's function; returns the output [B, heads, S, D] and the logarithms of the softmax's sums
[B, heads, S] in float32, which are not differentiable."""

SMALL_TILES = {
    "bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 32,
    "bwd_num_stages": 2, "bwd_num_warps": 4,
}  # fmt: skip
"""Options of the backward pass where torch's defaults would spill registers to memory."""
NARROW_TILES = {"fwd_BLOCK_N": 64}
"""Options of the forward pass for heads of 64. torch's default, tiles of 128 keys, spills registers on Blackwell, and
with a bias needs more than a multiprocessor's shared memory."""

LEAST_WIDTH = 16
"""Width of the narrowest head that its kernels for GPUs take."""


def kernel_options(device: torch.device) -> dict[str, int]:
    """Return the options of a kernel without a bias: on Blackwell torch's defaults need too many registers."""
    blackwell = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 10
    return SMALL_TILES | NARROW_TILES if blackwell else {}


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Return softmax(scale · q kᵀ + causal mask) v; shapes as in causal_attention.causal_attention."""
    out = compiled()(
        query.permute(1, 2, 0, 3),
        key.permute(1, 2, 0, 3),
        value.permute(1, 2, 0, 3),
        block_mask=causal_block_mask(query.shape[0], str(query.device)),
        scale=scale,
        enable_gqa=query.shape[2] != key.shape[2],
        kernel_options=kernel_options(query.device),
    )
    return out.permute(2, 0, 1, 3).flatten(2)


@functools.lru_cache(maxsize=4)
def causal_block_mask(sequence: int, device: str) -> Any:
    """Return FlexAttention's mask: the blocks of keys that each block of queries sees."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: i >= j, None, None, sequence, sequence, device=device)


def attend_with_sums(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a `FlexAttentionWithSums`; `options`: those of torch's function."""
    out, log_sums = _output_and_sums(query, key, value, **options)
    return out, log_sums.detach()


def attend_with_sinks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Compute FlexAttention with one more score for each head, of nothing; `options`: those of torch's function.

    `sinks`: these scores, of a shape that broadcasts to [B, heads, S].
    """
    out, log_sums = _output_and_sums(query, key, value, **options)
    return out * (log_sums - sinks).sigmoid().to(out.dtype)[..., None]


def _output_and_sums(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    from torch.nn.attention import flex_attention as module

    if hasattr(module, "AuxRequest"):
        out, found = module.flex_attention(query, key, value, return_aux=module.AuxRequest(lse=True), **options)
        return out, found.lse
    # Older releases of torch have this option instead.
    out, log_sums = module.flex_attention(query, key, value, return_lse=True, **options)
    return out, log_sums


@functools.cache
def compiled() -> FlexAttention:
    """Return FlexAttention, compiled for each shape."""
    from torch.nn.attention.flex_attention import flex_attention as kernel

    return _wide_enough(torch.compile(kernel, dynamic=False))


@functools.cache
def compiled_with_sums() -> FlexAttentionWithSums:
    """Return FlexAttention that also returns its softmax sums, compiled for each shape."""
    return _wide_enough(torch.compile(attend_with_sums, dynamic=False))


@functools.cache
def compiled_with_sinks() -> FlexAttention:
    """Return FlexAttention with sinks, compiled for each shape."""
    return _wide_enough(torch.compile(attend_with_sinks, dynamic=False))


def _wide_enough(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Let a kernel take narrow heads, padded with zeros: they change no score, since the caller gives the scale."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any, **options: Any) -> Any:
        width = value.shape[-1]
        if min(width, key.shape[-1]) >= LEAST_WIDTH:
            return kernel(query, key, value, *others, **options)
        # Not within what is compiled: Inductor lays out padded queries in another order than its kernel then reads
        # (torch 2.11 and 2.13).
        wide = (F.pad(each, (0, max(LEAST_WIDTH - each.shape[-1], 0))) for each in (query, key, value))
        found = kernel(*wide, *others, **options)
        return found[..., :width] if isinstance(found, torch.Tensor) else (found[0][..., :width], *found[1:])

    return attend


@functools.cache
def runs(device_type: str) -> bool:
    """Return whether FlexAttention can train on this device type: it needs a GPU for backward passes, and Triton."""
    if device_type != "cuda" or not torch.cuda.is_available():
        return False
    from torch.utils._triton import has_triton

    return bool(has_triton())
