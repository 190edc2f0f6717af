"""Attention in which each query sees consecutive keys: the compressed and the sliding-window branch of NSA.

N = batch × groups, S = sequence, G = query heads of a group, K = keys, D = head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from efficientbench.model.kernels.nsa import range_attention_flex, range_attention_npu
from efficientbench.model.kernels.nsa.choose_blocks import Choice, choose_at_once, choose_blocks
from efficientbench.model.kernels.nsa.reach import Reach

NAME = "torch matmuls over blocks of queries, scores recomputed in backward"
QUERY_BLOCK, QUERY_BLOCK_OF_AN_ACCELERATOR = 128, 1024
"""The most queries whose scores exist at once: enough rows for the matmuls' full speed. For a narrow reach a block has
as many queries as the reach is wide, since most of a larger block's scores would be of hidden keys. An accelerator
takes longer to start another kernel than to compute so many more scores."""
LEAST_QUERY_BLOCK = 32


class Block(NamedTuple):
    """Queries [start, stop) and the keys [low, high) that any of them sees."""

    start: int
    stop: int
    low: int
    high: int


def _blocks(query: torch.Tensor, reach: Reach) -> Iterator[Block]:
    """Yield blocks of the queries [N, S, G, D], without the first queries, which see no key."""
    sequence = query.shape[1]
    most = QUERY_BLOCK if query.device.type == "cpu" else QUERY_BLOCK_OF_AN_ACCELERATOR
    size = most if reach.width is None else min(max(reach.width, LEAST_QUERY_BLOCK), most)
    for start in range(reach.length - 1, sequence, size):
        stop = min(start + size, sequence)
        yield Block(start, stop, reach.first(start), reach.last(stop - 1))


class RangeAttention(torch.autograd.Function):
    """Softmax attention over each query's reach; with a `choice`, also chooses NSA's blocks."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        reach: Reach,
        choice: Choice | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        out = torch.zeros_like(query)
        chosen = choice.without_scores(query.shape[0], query.shape[1], query.device) if choice else None
        for block in _blocks(query, reach):
            rows = slice(block.start, block.stop)
            probabilities = _probabilities(query, key, scale, reach, block)
            seen = value[:, block.low : block.high]
            out[:, rows] = (probabilities.to(value.dtype) @ seen).view_as(out[:, rows])
            if choice is not None and chosen is not None:
                by_query = probabilities.unflatten(1, (-1, query.shape[2])).sum(dim=2)
                positions = torch.arange(block.start, block.stop, device=query.device)
                blocks = (block.stop - 1) // choice.block + 1
                chosen[:, rows] = choose_blocks(by_query, positions, blocks, choice)
        ctx.save_for_backward(query, key, value, out)
        ctx.scale, ctx.reach = scale, reach
        if chosen is not None:
            ctx.mark_non_differentiable(chosen)
        return out, chosen

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out = ctx.saved_tensors
        grad_query = torch.zeros_like(query)
        # In float32, because many blocks of queries add to one key.
        grad_key = torch.zeros_like(key, dtype=torch.float32)
        grad_value = torch.zeros_like(value, dtype=torch.float32)
        for block in _blocks(query, ctx.reach):
            rows, columns = slice(block.start, block.stop), slice(block.low, block.high)
            probabilities = _probabilities(query, key, ctx.scale, ctx.reach, block)
            grad = grad_outputs[0][:, rows].flatten(1, 2)
            _accumulate(grad_value[:, columns], probabilities.to(grad.dtype).transpose(1, 2), grad)
            # The softmax's gradient is p · (dp − Σ p · dp), and Σ p · dp = gradient · output.
            product = (grad * out[:, rows].flatten(1, 2)).sum(dim=-1, keepdim=True, dtype=torch.float32)
            grad_scores = (grad @ value[:, columns].transpose(1, 2)).float().sub_(product).mul_(probabilities)
            grad_scores = grad_scores.mul_(ctx.scale).to(query.dtype)
            grad_query[:, rows] = (grad_scores @ key[:, columns]).view_as(grad_query[:, rows])
            _accumulate(grad_key[:, columns], grad_scores.transpose(1, 2), query[:, rows].flatten(1, 2))
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None, None, None


def _probabilities(query: torch.Tensor, key: torch.Tensor, scale: float, reach: Reach, block: Block) -> torch.Tensor:
    """Return the attention probabilities of a block of C queries over its K keys, [N, C · G, K] in float32."""
    keys = key[:, block.low : block.high]
    scaled = query[:, block.start : block.stop] * scale
    scores = scaled.flatten(1, 2) @ keys.transpose(1, 2)
    hidden = reach.hidden(
        torch.arange(block.start, block.stop, device=query.device),
        torch.arange(block.low, block.high, device=query.device),
    )
    scores.view(*scaled.shape[:3], -1).masked_fill_(hidden[:, None], float("-inf"))
    return scores.softmax(dim=-1, dtype=torch.float32)


def _accumulate(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add left [N, K, R] · right [N, R, D] to total [N, K, D], whose dtype may be wider than the factors'."""
    if total.dtype == left.dtype:
        total.baddbmm_(left, right)
    else:
        total += left @ right


def range_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    reach: Reach,
    choice: Choice | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return softmax(scale · q kᵀ) v over the keys within each query's reach; 0 for a query that sees none.

    Scores exist for one block of queries at a time, in the forward and in the backward pass.

    Args:
        query: [N, S, G, D]
        key: [N, K, D], shared by the query heads of a group.
        value: [N, K, D], shared by the query heads of a group.
        scale: factor on the scores.
        reach: the keys that a query sees.
        choice: sizes by which to choose blocks from the probabilities; None: choose no blocks.

    Returns:
        The output [N, S, G, D], and the chosen blocks [N, S, count] or None.
    """
    for kernel in (range_attention_flex, range_attention_npu):
        if kernel.serves(query.device.type):
            if choice is None:
                return kernel.range_attention(query, key, value, scale, reach), None
            out, log_sums = kernel.range_attention_with_sums(query, key, value, scale, reach)
            return out, choose_at_once(query, key, log_sums, scale, reach, choice, kernel.FUSES)
    result: tuple[torch.Tensor, torch.Tensor | None] = RangeAttention.apply(query, key, value, scale, reach, choice)
    return result


def kernel_name(device_type: str) -> str:
    """Return the name of the kernel that `range_attention` uses on this device type."""
    kernels = (range_attention_flex, range_attention_npu)
    return next((kernel.NAME for kernel in kernels if kernel.serves(device_type)), NAME)
