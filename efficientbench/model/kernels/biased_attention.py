"""Causal softmax attention with a bias on the scores that depends on the head and the distance alone.

No kernel here holds an S × S bias for each head, or the scores of all queries at once.
S = sequence, B = batch, D = head dimension, R = queries of a block, N = keys that a block's last query sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from efficientbench.model.kernels import biased_attention_flex, flex, npu_fused
from efficientbench.model.kernels.causal_attention import AttentionKernel

BLOCK_ELEMENTS, BLOCK_ELEMENTS_OF_AN_ACCELERATOR = 2**20, 2**25
"""Scores in one block. On a CPU: few enough for its cache, with enough rows for the matmul's speed. On an accelerator:
so many that few kernels start."""

Block = tuple[int, int, torch.Tensor, torch.Tensor]

BLOCKS = "blocks of queries, recomputed in the backward pass"
"""The kernel that serves every device."""


def name(device_type: str, trained: Callable[[], bool]) -> str:
    """Return the name of a device type's kernel; `trained()`: whether the bias is trained, asked only if it matters."""
    if npu_fused.serves(device_type):
        return name_by_blocks(device_type) if trained() else npu_fused.ATTENTION
    if flex.runs(device_type):
        return biased_attention_flex.TRAINED if trained() else flex.NAME
    return BLOCKS


def name_by_blocks(device_type: str) -> str:
    """Return the name of `biased_by_blocks`'s kernel."""
    return f"{npu_fused.ATTENTION}; backward: {BLOCKS}" if npu_fused.serves(device_type) else BLOCKS


def biased_causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, bias: torch.Tensor
) -> torch.Tensor:
    """Return softmax(scale · q kᵀ + bias by distance + causal mask) v; query head h reads group h // (heads / groups).

    Args:
        query: [S, B, heads, D]
        key: [S, B, groups, D]
        value: [S, B, groups, D]
        scale: factor on the products, not on the bias.
        bias: [heads, S]; entry d is added to the score of a query and the key d tokens before it. It may be trained.

    Returns:
        [S, B, heads · D]
    """
    if flex.runs(query.device.type):
        return biased_attention_flex.attend(query, key, value, scale, bias)
    if npu_fused.serves(query.device.type) and not bias.requires_grad:
        return npu_fused.biased_causal_attention(query, key, value, scale, bias)
    return BlockedAttention.apply(query, key, value, scale, bias)


def biased_by_blocks(bias: torch.Tensor) -> AttentionKernel:
    """Return a kernel for sequences of many lengths, each at most that of `bias` [heads, S], on every device.

    FlexAttention would be compiled for each length.
    """

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        return BlockedAttention.apply(query, key, value, scale, bias[:, : query.shape[0]])

    return attend


class BlockedAttention(torch.autograd.Function):
    """Attention to blocks of queries one after another, in float32; keeps only its inputs for the backward pass.

    Keys are read from the last to the first. The distance then grows by one along a block's rows and columns, so a
    strided view of the bias has the shape of the scores, and infinities before its start are the causal mask.
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, bias: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value, bias)
        ctx.scale = scale
        if npu_fused.serves(query.device.type):
            # The fused kernel gives the bias no gradient: the backward pass below does.
            return npu_fused.biased_causal_attention(query, key, value, scale, bias)
        sequence, batch, heads, _ = query.shape
        keys, values = _reversed(key), _reversed(value)
        out = query.new_empty(sequence, batch, heads, value.shape[-1])
        for first, last, probabilities, _ in _probabilities(query, keys, scale, bias):
            block = torch.bmm(probabilities, values[:, sequence - last :])
            out[first:last] = block.view(batch, heads, last - first, -1).permute(2, 0, 1, 3)
        return out.flatten(2)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, bias = ctx.saved_tensors
        sequence, batch, heads, _ = query.shape
        grad_out = grad_outputs[0].view(sequence, batch, heads, -1)
        keys, values = _reversed(key), _reversed(value)
        grad_keys, grad_values = torch.zeros_like(keys), torch.zeros_like(values)
        grad_query = torch.empty_like(query)
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if ctx.needs_input_grad[4] else None
        for first, last, probabilities, queries in _probabilities(query, keys, ctx.scale, bias):
            seen = slice(sequence - last, sequence)
            grad = _rows(grad_out[first:last], keys.shape[0])
            grad_values[:, seen].baddbmm_(probabilities.transpose(1, 2), grad)
            grad_probabilities = torch.bmm(grad, values[:, seen].transpose(1, 2))
            grad_scores = torch._softmax_backward_data(grad_probabilities, probabilities, -1, torch.float32)
            grad_queries = torch.bmm(grad_scores, keys[:, seen]).mul_(ctx.scale)
            grad_query[first:last] = grad_queries.view(batch, heads, last - first, -1).permute(2, 0, 1, 3)
            grad_keys[:, seen].baddbmm_(grad_scores.transpose(1, 2), queries)
            if grad_bias is not None:
                grad_bias[:, :last] += _sum_by_distance(grad_scores.view(batch, heads, last - first, last))
        grad_key, grad_value = (
            grad.flip(1).view(batch, -1, sequence, grad.shape[-1]).permute(2, 0, 1, 3).to(key.dtype)
            for grad in (grad_keys, grad_values)
        )
        return grad_query, grad_key, grad_value, None, None if grad_bias is None else grad_bias.to(bias.dtype)


def _reversed(x: torch.Tensor) -> torch.Tensor:
    """Reverse keys or values [S, B, groups, D] → float32 [B · groups, S, D], the last token first."""
    return x.permute(1, 2, 0, 3).flip(2).float().flatten(0, 1)


def _rows(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Lay out a block of queries [R, B, heads, D] → float32 [B · groups, heads / groups · R, D]."""
    return x.permute(1, 2, 0, 3).float().reshape(groups, -1, x.shape[-1])


def _probabilities(query: torch.Tensor, keys: torch.Tensor, scale: float, bias: torch.Tensor) -> Iterator[Block]:
    """Yield each block of queries: its first position, the position after its last, probabilities, scaled queries.

    Probabilities over reversed keys: [B · groups, heads / groups · R, N]; queries: [B · groups, heads / groups · R, D].
    """
    sequence, batch, heads, _ = query.shape
    elements = BLOCK_ELEMENTS if query.device.type == "cpu" else BLOCK_ELEMENTS_OF_AN_ACCELERATOR
    rows = min(max(elements // (batch * heads * sequence), 16), sequence)
    # Distances from 1 - R to S - 1; a key after its query has a negative distance.
    distances = F.pad(bias.detach().float(), (rows - 1, 0), value=-torch.inf)
    for first in range(0, sequence, rows):
        last = min(first + rows, sequence)
        shape, stride = (heads, last - first, last), (distances.stride(0), 1, 1)
        offset = rows - (last - first)
        queries = _rows(query[first:last], keys.shape[0]) * scale
        scores = torch.bmm(queries, keys[:, sequence - last :].transpose(1, 2))
        scores.view(batch, *shape).add_(distances.as_strided(shape, stride, offset))
        yield first, last, torch.softmax(scores, dim=-1), queries


def _sum_by_distance(grad_scores: torch.Tensor) -> torch.Tensor:
    """Sum the gradient of a block's scores [B, heads, R, N] over reversed keys by distance → [heads, N]."""
    _, heads, rows, seen = grad_scores.shape
    # Rows padded to N + R columns, read as rows of N + R - 1: each begins one column further right than the row above
    # it, so that equal distances are in one column.
    padded = grad_scores.new_zeros(heads, rows, seen + rows)
    torch.sum(grad_scores, dim=0, out=padded[:, :, :seen])
    skewed = padded.view(heads, -1)[:, : rows * (seen + rows - 1)].view(heads, rows, seen + rows - 1)
    return skewed.sum(dim=1)[:, rows - 1 :]
