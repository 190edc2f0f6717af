"""Attention in which each query sees consecutive keys: sliding windows, and NSA's compressed and window branch.

N = batch × groups, S = sequence, G = query heads of a group, K = keys, D = head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch

from efficientbench.model.kernels import flex, npu_fused
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
    for start in range(reach.blind, sequence, size):
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
        sinks: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        out = torch.zeros_like(query)
        chosen = choice.without_scores(query.shape[0], query.shape[1], query.device) if choice else None
        for block in _blocks(query, reach):
            rows = slice(block.start, block.stop)
            probabilities, _ = _probabilities(query, key, scale, reach, block, sinks)
            seen = value[:, block.low : block.high]
            out[:, rows] = (probabilities.to(value.dtype) @ seen).view_as(out[:, rows])
            if choice is not None and chosen is not None:
                by_query = probabilities.unflatten(1, (-1, query.shape[2])).sum(dim=2)
                positions = torch.arange(block.start, block.stop, device=query.device)
                blocks = (block.stop - 1) // choice.block + 1
                chosen[:, rows] = choose_blocks(by_query, positions, blocks, choice)
        ctx.save_for_backward(query, key, value, out, sinks)
        ctx.scale, ctx.reach = scale, reach
        if chosen is not None:
            ctx.mark_non_differentiable(chosen)
        return out, chosen

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, sinks = ctx.saved_tensors
        grad_query = torch.zeros_like(query)
        # In float32, because many blocks of queries add to one key.
        grad_key = torch.zeros_like(key, dtype=torch.float32)
        grad_value = torch.zeros_like(value, dtype=torch.float32)
        grad_sinks = None if sinks is None else torch.zeros_like(sinks, dtype=torch.float32)
        for block in _blocks(query, ctx.reach):
            rows, columns = slice(block.start, block.stop), slice(block.low, block.high)
            probabilities, of_sinks = _probabilities(query, key, ctx.scale, ctx.reach, block, sinks)
            grad = grad_outputs[0][:, rows].flatten(1, 2)
            _accumulate(grad_value[:, columns], probabilities.to(grad.dtype).transpose(1, 2), grad)
            # The softmax's gradient is p · (dp − Σ p · dp), and Σ p · dp = gradient · output. A sink's dp is 0.
            product = (grad * out[:, rows].flatten(1, 2)).sum(dim=-1, keepdim=True, dtype=torch.float32)
            if grad_sinks is not None and of_sinks is not None:
                grad_sinks -= (of_sinks * product).unflatten(1, (-1, query.shape[2])).sum(dim=(1, 3))
            grad_scores = (grad @ value[:, columns].transpose(1, 2)).float().sub_(product).mul_(probabilities)
            grad_scores = grad_scores.mul_(ctx.scale).to(query.dtype)
            grad_query[:, rows] = (grad_scores @ key[:, columns]).view_as(grad_query[:, rows])
            _accumulate(grad_key[:, columns], grad_scores.transpose(1, 2), query[:, rows].flatten(1, 2))
        if grad_sinks is not None:
            grad_sinks = grad_sinks.to(sinks.dtype)
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None, None, None, grad_sinks


def _probabilities(
    query: torch.Tensor, key: torch.Tensor, scale: float, reach: Reach, block: Block, sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the attention probabilities of a block of C queries over its K keys, [N, C · G, K] in float32.

    With sinks [N, G] also theirs, [N, C · G, 1].
    """
    keys = key[:, block.low : block.high]
    scaled = query[:, block.start : block.stop] * scale
    scores = scaled.flatten(1, 2) @ keys.transpose(1, 2)
    hidden = reach.hidden(
        torch.arange(block.start, block.stop, device=query.device),
        torch.arange(block.low, block.high, device=query.device),
    )
    scores.view(*scaled.shape[:3], -1).masked_fill_(hidden[:, None], float("-inf"))
    if sinks is None:
        return scores.softmax(dim=-1, dtype=torch.float32), None
    of_sinks = sinks.float()[:, None].expand(-1, scaled.shape[1], -1).reshape(*scores.shape[:2], 1)
    probabilities = torch.cat([scores.float(), of_sinks], dim=-1).softmax(dim=-1)
    return probabilities[..., :-1], probabilities[..., -1:]


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
    sinks: torch.Tensor | None = None,
    by_blocks: bool = False,
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
        sinks: [N, G], one more score of each query, for nothing, so that its probabilities sum to less than 1.
        by_blocks: do not compile a kernel for these shapes.

    Returns:
        The output [N, S, G, D], and the chosen blocks [N, S, count] or None.
    """
    kernel = _kernel(query.device.type, sinks is not None, by_blocks)
    if kernel is None:
        return RangeAttention.apply(query, key, value, scale, reach, choice, sinks)
    if choice is not None:
        out, log_sums = kernel.range_attention_with_sums(query, key, value, scale, reach)
        return out, choose_at_once(query, key, log_sums, scale, reach, choice, kernel.FUSES)
    if sinks is not None:
        return kernel.range_attention_with_sinks(query, key, value, sinks, scale, reach), None
    return kernel.range_attention(query, key, value, scale, reach), None


def _kernel(device_type: str, sinks: bool, by_blocks: bool) -> ModuleType | None:
    """Return the module of a device type's own kernel; None: torch's matmuls."""
    if flex.runs(device_type) and not by_blocks:
        return range_attention_flex
    return range_attention_npu if npu_fused.serves(device_type) and not sinks else None


def kernel_name(device_type: str, sinks: bool = False, by_blocks: bool = False) -> str:
    """Return the name of the kernel that `range_attention` uses on this device type."""
    kernel = _kernel(device_type, sinks, by_blocks)
    return NAME if kernel is None else str(kernel.NAME)
