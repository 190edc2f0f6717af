"""The selected branch of NSA by torch_npu's kernel, on Ascend NPUs. Not run on an NPU yet.

The kernel reads all tokens of a chosen block, and its mask is documented as not supported: in its own block, a query
would see later tokens. So the kernel gets only past blocks, and the own block is computed here, causally; the two are
joined by their softmax sums, as FlashAttention joins its tiles. A query with fewer blocks than the kernel requires gets
an empty block for the rest, whose keys have no weight.

N = batch × groups, S = sequence, G = query heads of a group, D = head dimension, L = tokens in a block.
Signatures: torch_npu 2.13 (`npu_nsa_select_attention`, `npu_nsa_select_attention_grad`); limits: op-plugin's
documentation of the former.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from efficientbench.model.kernels import npu_fused
from efficientbench.model.kernels.nsa.choose_blocks import SelectionShape

NAME = "torch_npu npu_nsa_select_attention (past blocks) with torch matmuls (own block)"
FAMILY = "A2"
"""The only chip family for which the kernel is documented."""
BLOCK, COUNT = 64, 16
"""Tokens in a block and blocks of a query: the kernel takes no other numbers."""
KEY_DIM, VALUE_DIM = 192, 128
"""Head dimensions of keys and values: the kernel takes no others, and narrower heads are padded with zeros."""
LEAST_SEQUENCE = BLOCK * COUNT
LARGEST_GROUP = 32
EMPTY_SCORE = -1e4
"""An empty block's score before the scale; its weight is exp(-1e4 / √D), which is 0."""


@functools.cache
def _has_kernel() -> bool:
    return npu_fused.chip_family() == FAMILY and hasattr(npu_fused.torch_npu(), "npu_nsa_select_attention_grad")


def serves(device_type: str, shape: SelectionShape) -> bool:
    """Return whether the kernel computes the selected branch for this shape on this device type."""
    fits = (
        (shape.block, shape.count) == (BLOCK, COUNT)
        and shape.head_dim <= VALUE_DIM
        and shape.group <= LARGEST_GROUP
        and shape.sequence >= LEAST_SEQUENCE
        and shape.sequence % BLOCK == 0
        and shape.half
    )
    return device_type == "npu" and fits and _has_kernel()


class SelectedAttention(torch.autograd.Function):
    """Softmax attention over the chosen blocks, for shapes that `serves` accepts."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, chosen: torch.Tensor, scale: float
    ) -> torch.Tensor:
        batch, sequence, group, dim = query.shape
        past = _Past.of(query, key, value, chosen)
        out_past, largest_past, sum_past = npu_fused.torch_npu().npu_nsa_select_attention(
            past.query,
            past.key,
            past.value,
            past.chosen,
            scale,
            past.query.shape[1],
            BLOCK,
            COUNT,
            actual_seq_qlen=past.query_ends,
            actual_seq_kvlen=past.key_ends,
        )
        # The kernel returns eight copies of each statistic, side by side.
        out_past = out_past[:, :group, :dim].reshape(query.shape).float()
        largest_past, sum_past = (
            each[:, :group, 0].reshape(batch, sequence, group, 1) for each in (largest_past, sum_past)
        )
        scores = _own_scores(query, key, scale)
        largest_own = scores.amax(dim=-1, keepdim=True).view_as(largest_past)
        largest = torch.maximum(largest_past, largest_own)
        own = (scores - _by_block(largest)).exp()
        weight_past = sum_past * (largest_past - largest).exp()
        total = weight_past + own.sum(dim=-1, keepdim=True).view_as(largest)
        out_own = (own.to(value.dtype) @ _in_blocks(value)).float().view_as(query)
        out = ((out_past * weight_past + out_own) / total).to(query.dtype)
        ctx.save_for_backward(query, key, value, chosen, out, largest, total)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, chosen, out, largest, total = ctx.saved_tensors
        batch, sequence, group, dim = query.shape
        past = _Past.of(query, key, value, chosen)
        grad = grad_outputs[0].contiguous()
        # With the joined output and sums, the kernel's probabilities and Σ p · dp are those of past and own blocks.
        grad_query, grad_key, grad_value = npu_fused.torch_npu().npu_nsa_select_attention_grad(
            _heads(grad, VALUE_DIM),
            past.query,
            past.key,
            past.value,
            _heads(out, VALUE_DIM),
            _statistics(largest),
            _statistics(total, empty=1.0),
            past.chosen,
            ctx.scale,
            past.query.shape[1],
            BLOCK,
            COUNT,
            actual_seq_qlen=past.query_ends,
            actual_seq_kvlen=past.key_ends,
        )
        grad_query = grad_query[:, :group, :dim].reshape(query.shape).float()
        grad_key, grad_value = (
            each[:, 0, :dim].unflatten(0, (batch, -1))[:, :sequence].float() for each in (grad_key, grad_value)
        )
        probabilities = (_own_scores(query, key, ctx.scale) - _by_block(largest)).exp() / _by_block(total)
        grads = _by_block(grad)
        product = _by_block((grad * out).sum(dim=-1, keepdim=True, dtype=torch.float32))
        own_value = probabilities.to(grad.dtype).transpose(-1, -2) @ grads
        grad_scores = (grads @ _in_blocks(value).transpose(-1, -2)).float().sub_(product).mul_(probabilities)
        grad_scores = grad_scores.mul_(ctx.scale).to(query.dtype)
        grad_query += (grad_scores @ _in_blocks(key)).float().view_as(query)
        grad_key += (grad_scores.transpose(-1, -2) @ _by_block(query)).float().view_as(key)
        grad_value += own_value.float().view_as(value)
        return grad_query.to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


class _Past(NamedTuple):
    """The kernel's arguments in its layout [tokens, heads, dimension], the N sequences one after another."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    chosen: torch.Tensor
    query_ends: list[int]
    key_ends: list[int]

    @classmethod
    def of(cls, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, chosen: torch.Tensor) -> _Past:
        batch, sequence, _, dim = query.shape
        # One dimension beyond the head's gives the score of the empty block, which is the last of each sequence.
        queries = _heads(query, KEY_DIM)
        queries[..., dim] = 1
        keys = F.pad(key, (0, KEY_DIM - dim, 0, BLOCK))
        keys[:, sequence:, dim] = EMPTY_SCORE
        values = F.pad(value, (0, VALUE_DIM - dim, 0, BLOCK))
        own = torch.arange(sequence, device=chosen.device)[:, None] // BLOCK
        blocks = torch.where((chosen < 0) | (chosen == own), sequence // BLOCK, chosen)
        return cls(
            query=queries,
            key=keys.flatten(0, 1).unsqueeze(1),
            value=values.flatten(0, 1).unsqueeze(1),
            chosen=blocks.flatten(0, 1).unsqueeze(1).to(torch.int32),
            query_ends=[sequence * number for number in range(1, batch + 1)],
            key_ends=[(sequence + BLOCK) * number for number in range(1, batch + 1)],
        )


def _heads(x: torch.Tensor, width: int) -> torch.Tensor:
    """Copy [N, S, G, D] → [N · S, G padded to a power of two, width]."""
    group = x.shape[2]
    return F.pad(x, (0, width - x.shape[3], 0, (1 << (group - 1).bit_length()) - group)).flatten(0, 1).contiguous()


def _statistics(x: torch.Tensor, empty: float = 0.0) -> torch.Tensor:
    """Lay out [N, S, G, 1] → [N · S, G padded with `empty`, 8], as the kernel takes softmax statistics."""
    group = x.shape[2]
    filled = F.pad(x, (0, 0, 0, (1 << (group - 1).bit_length()) - group), value=empty)
    return filled.flatten(0, 1).expand(-1, -1, 8).contiguous()


def _in_blocks(keys: torch.Tensor) -> torch.Tensor:
    """Split keys or values [N, S, D] → [N, S / L, L, D]."""
    return keys.unflatten(1, (-1, BLOCK))


def _by_block(x: torch.Tensor) -> torch.Tensor:
    """Split queries [N, S, G, D] → [N, S / L, L · G, D]."""
    return x.unflatten(1, (-1, BLOCK)).flatten(2, 3)


def _own_scores(query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
    """Return each query's scores with the keys of its own block, [N, S / L, L · G, L] in float32; −∞ for later keys."""
    scores = (_by_block(query * scale) @ _in_blocks(key).transpose(-1, -2)).float()
    later = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=query.device).triu(1)
    return scores.masked_fill_(later.repeat_interleave(query.shape[2], dim=0), float("-inf"))
