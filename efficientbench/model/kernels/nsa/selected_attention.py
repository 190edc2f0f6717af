"""Attention of each query to its own choice of key blocks: the selected branch of NSA.

A pair is a query and one of its blocks. Pairs are sorted by block and cut into tiles of P pairs that share a block. So
the work is matmuls of [P · G, D] with [D, L], and a block's keys are read once for a tile, not once for a query.

N = batch × groups, S = sequence, G = query heads of a group, D = head dimension, L = tokens in a block, n = blocks of a
query, T = tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from efficientbench.model.kernels.nsa import selected_attention_fla, selected_attention_npu
from efficientbench.model.kernels.nsa.choose_blocks import SelectionShape

NAME = "torch matmuls over tiles of queries that share a block, scores recomputed in backward"
CHUNK_SCORES, CHUNK_SCORES_OF_AN_ACCELERATOR = 2**18, 2**25
"""Scores that exist at once: on a CPU as many as its cache holds (1 MiB in float32); on an accelerator 128 MiB, which
few kernels compute."""


class Tiles(NamedTuple):
    """T tiles, whose scores exist at once."""

    pair: torch.Tensor
    """[T · P], the pair's number in [N, S, n]; one past the last for the padding of a tile."""
    row: torch.Tensor
    """[T · P], the row of the pair's query in [N · S]."""
    block: torch.Tensor
    """[T], the row of the tile's block in [N · blocks]."""
    cut: torch.Tensor
    """Numbers of the tiles that hide some key from some query."""
    hidden: torch.Tensor
    """[len(cut), P, 1, L], True for keys after the query, and for all keys of the padding."""


def _tiles(chosen: torch.Tensor, block_size: int, group: int) -> Iterator[Tiles]:
    batch, sequence, count = chosen.shape
    blocks = -(-sequence // block_size)
    total, size = chosen.numel(), block_size
    offsets = torch.arange(batch, device=chosen.device)[:, None, None] * blocks
    block_of_pair = torch.where(chosen < 0, batch * blocks, chosen + offsets).flatten()
    pairs = block_of_pair.argsort(stable=True)
    pairs_of_block = block_of_pair.bincount(minlength=batch * blocks)[: batch * blocks]
    tiles_of_block = (pairs_of_block + size - 1) // size
    block = torch.arange(batch * blocks, device=chosen.device).repeat_interleave(tiles_of_block)
    # `number` counts the tiles of a block; it gives the place of a tile's first pair in the sorted list.
    number = torch.arange(len(block), device=chosen.device) - (tiles_of_block.cumsum(0) - tiles_of_block)[block]
    end = pairs_of_block.cumsum(0)
    place = (end - pairs_of_block)[block] + number * size
    scores = CHUNK_SCORES if chosen.device.type == "cpu" else CHUNK_SCORES_OF_AN_ACCELERATOR
    for part in torch.arange(len(block), device=chosen.device).split(max(scores // (size * group * size), 1)):
        places = place[part][:, None] + torch.arange(size, device=chosen.device)
        full = places < end[block[part]][:, None]
        pair = torch.where(full, pairs[places.clamp(max=total - 1)], total)
        row = torch.where(full, pair // count, 0)
        position = torch.where(full, row % sequence, -1)
        keys = block[part][:, None] % blocks * block_size + torch.arange(block_size, device=chosen.device)
        # Only few tiles are cut: those with queries of the block itself, and those with padding.
        cut = (position.amin(dim=1) < keys[:, -1]).nonzero().squeeze(1)
        hidden = keys[cut][:, None] > position[cut][:, :, None]
        yield Tiles(pair.flatten(), row.flatten(), block[part], cut, hidden[:, :, None])


class SelectedAttention(torch.autograd.Function):
    """Softmax attention over the chosen blocks, in two passes: each query's largest score, then the sums."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        chosen: torch.Tensor,
        block_size: int,
        scale: float,
    ) -> torch.Tensor:
        batch, sequence, group, dim = query.shape
        rows = batch * sequence
        queries = query.reshape(rows, group * dim) * scale
        keys, values = _in_blocks(key, block_size), _in_blocks(value, block_size)
        # The padding of tiles is written into one row beyond the pairs.
        largest = queries.new_full((chosen.numel() + 1, group), float("-inf"), dtype=torch.float32)
        for tiles in _tiles(chosen, block_size, group):
            largest[tiles.pair] = _scores(queries, keys, tiles, group).amax(dim=-1).flatten(0, 1)
        top = largest[:-1].view(rows, -1, group).amax(dim=1)
        sums = torch.zeros_like(top)
        out = torch.zeros_like(queries, dtype=torch.float32)
        for tiles in _tiles(chosen, block_size, group):
            exponentials = _exponentials(queries, keys, tiles, top)
            sums.index_add_(0, tiles.row, exponentials.sum(dim=-1).flatten(0, 1))
            part = exponentials.flatten(1, 2).to(value.dtype) @ values.index_select(0, tiles.block)
            out.index_add_(0, tiles.row, part.view(-1, group * dim).float())
        out = (out.view(rows, group, dim) / sums[..., None]).view_as(query).to(query.dtype)
        ctx.save_for_backward(query, key, value, chosen, out, top + sums.log())
        ctx.block_size, ctx.scale = block_size, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, chosen, out, log_sums = ctx.saved_tensors
        batch, sequence, group, dim = query.shape
        queries = query.reshape(-1, group * dim) * ctx.scale
        grads = grad_outputs[0].reshape(-1, group * dim)
        keys, values = _in_blocks(key, ctx.block_size), _in_blocks(value, ctx.block_size)
        # The softmax's gradient is p · (dp − Σ p · dp), and Σ p · dp = gradient · output.
        product = (grad_outputs[0] * out).sum(dim=-1, dtype=torch.float32).view(-1, group)
        grad_queries = torch.zeros_like(queries, dtype=torch.float32)
        grad_keys = torch.zeros_like(keys, dtype=torch.float32)
        grad_values = torch.zeros_like(values, dtype=torch.float32)
        for tiles in _tiles(chosen, ctx.block_size, group):
            probabilities = _exponentials(queries, keys, tiles, log_sums)
            grad = _of_tiles(grads, tiles, group)
            part = probabilities.flatten(1, 2).to(grad.dtype).transpose(1, 2) @ grad
            grad_values.index_add_(0, tiles.block, part.float())
            grad_scores = (grad @ values.index_select(0, tiles.block).transpose(1, 2)).float().view_as(probabilities)
            grad_scores.sub_(product.index_select(0, tiles.row).view(*probabilities.shape[:3], 1)).mul_(probabilities)
            grad_scores = grad_scores.flatten(1, 2).to(query.dtype)
            part = grad_scores @ keys.index_select(0, tiles.block)
            grad_queries.index_add_(0, tiles.row, part.view(-1, group * dim).float())
            part = grad_scores.transpose(1, 2) @ _of_tiles(queries, tiles, group)
            grad_keys.index_add_(0, tiles.block, part.float())
        grad_key = grad_keys.view(batch, -1, dim)[:, :sequence].to(key.dtype)
        grad_value = grad_values.view(batch, -1, dim)[:, :sequence].to(value.dtype)
        grad_query = grad_queries.mul_(ctx.scale).view_as(query).to(query.dtype)
        return grad_query, grad_key, grad_value, None, None, None


def _in_blocks(keys: torch.Tensor, block_size: int) -> torch.Tensor:
    """Split [N, S, D] → [N · blocks, L, D]; the last block is padded with zeros, which no query sees."""
    batch, sequence, dim = keys.shape
    return F.pad(keys, (0, 0, 0, -sequence % block_size)).reshape(-1, block_size, dim)


def _scores(queries: torch.Tensor, keys: torch.Tensor, tiles: Tiles, group: int) -> torch.Tensor:
    """Return scores [T, P, G, L] in float32, −∞ for hidden keys; `queries` are scaled already."""
    gathered = _of_tiles(queries, tiles, group)
    scores = (gathered @ keys.index_select(0, tiles.block).transpose(1, 2)).float().unflatten(1, (-1, group))
    scores[tiles.cut] = scores[tiles.cut].masked_fill_(tiles.hidden, float("-inf"))
    return scores


def _of_tiles(rows: torch.Tensor, tiles: Tiles, group: int) -> torch.Tensor:
    """Return the tiles' queries out of rows [N · S, G · D]: [T, P · G, D]."""
    return rows.index_select(0, tiles.row).view(len(tiles.block), -1, rows.shape[1] // group)


def _exponentials(queries: torch.Tensor, keys: torch.Tensor, tiles: Tiles, shift: torch.Tensor) -> torch.Tensor:
    """Return exp(score − the query's shift), [T, P, G, L]; shift [N · S, G]."""
    scores = _scores(queries, keys, tiles, shift.shape[1])
    return scores.sub_(shift.index_select(0, tiles.row).view(*scores.shape[:3], 1)).exp_()


def selected_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    chosen: torch.Tensor,
    block_size: int,
    scale: float,
) -> torch.Tensor:
    """Return softmax(scale · q kᵀ) v over the keys in each query's chosen blocks up to its own position.

    Args:
        query: [N, S, G, D]
        key: [N, S, D], shared by the query heads of a group.
        value: [N, S, D], shared by the query heads of a group.
        chosen: [N, S, n], distinct block numbers, the query's own block included; -1 for no block.
        block_size: tokens in a block.
        scale: factor on the scores.

    Returns:
        [N, S, G, D]
    """
    _, sequence, group, dim = query.shape
    shape = SelectionShape(block_size, chosen.shape[2], dim, group, sequence, query.dtype.itemsize == 2)
    if selected_attention_fla.serves(query.device.type, shape):
        return selected_attention_fla.SelectedAttention.apply(query, key, value, chosen, block_size, scale)
    if selected_attention_npu.serves(query.device.type, shape):
        return selected_attention_npu.SelectedAttention.apply(query, key, value, chosen, scale)
    return SelectedAttention.apply(query, key, value, chosen, block_size, scale)


def kernel_name(device_type: str, shape: SelectionShape) -> str:
    """Return the name of the kernel that `selected_attention` uses for this shape on this device type."""
    kernels = (selected_attention_fla, selected_attention_npu)
    return next((kernel.NAME for kernel in kernels if kernel.serves(device_type, shape)), NAME)
