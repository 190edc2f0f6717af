"""Decoding of Native Sparse Attention: the state of earlier tokens, and the attention of new tokens to it.

Only the selected branch keeps every token. The compressed branch keeps one key for a block of tokens, and the window a
ring of the latest tokens. The l - 1 latest raw keys and values are the start of the block that φ compresses next.
B = rows, Hg = KV groups of this tensor-parallel rank, N = B · Hg, S = new tokens of a row, G = query heads of a group,
D = head dimension; l, d, l', n, w as in architecture/nsa.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from efficientbench.architecture.nsa import NSAConfig, kept_keys
from efficientbench.model.cache import Chunk, State, write_tokens
from efficientbench.model.kernels.nsa.choose_blocks import Choice, choose_blocks


class Tokens(NamedTuple):
    """Keys and values of new tokens, [S, B, Hg, D] each; the keys of the selected and the window branch are rotated."""

    raw_key: torch.Tensor
    raw_value: torch.Tensor
    selected_key: torch.Tensor
    selected_value: torch.Tensor
    window_key: torch.Tensor
    window_value: torch.Tensor


Compress = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""(raw keys, raw values [B, Hg, l - 1 + S, D]) → for each new token the rotated compressed key and the compressed value
of the l tokens up to it, [S, B, Hg, D] each."""


class NSAState(State):
    """Keys and values of the three branches; the last slot of compressed and window keys takes discarded tokens."""

    def __init__(self, nsa: NSAConfig, tokens: int, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
        """Allocate slots for `tokens` tokens of each row; `shape`: B, Hg and D."""
        rows, groups, dim = shape
        kept = kept_keys(nsa, tokens)

        def slots(number: int) -> torch.Tensor:
            return torch.zeros(rows, groups, number, dim, dtype=dtype)

        self.selected_keys, self.selected_values = slots(kept.selected), slots(kept.selected)
        self.compressed_keys, self.compressed_values = slots(kept.compressed + 1), slots(kept.compressed + 1)
        self.window_keys, self.window_values = slots(kept.window + 1), slots(kept.window + 1)
        self.raw_keys, self.raw_values = slots(nsa.compress_block - 1), slots(nsa.compress_block - 1)

    def write_whole(self, tokens: Tokens, chunk: Chunk) -> None:
        """Write the selected branch's keys and values of all new tokens."""
        chunk.keep(self.selected_keys, tokens.selected_key)
        chunk.keep(self.selected_values, tokens.selected_value)

    def write_window(self, tokens: Tokens, chunk: Chunk) -> None:
        """Write the latest tokens into the window's ring, over the tokens that leave it."""
        width = self.window_keys.shape[2] - 1
        offsets = torch.arange(len(chunk.positions), device=chunk.positions.device)[:, None]
        latest = (offsets < chunk.counts) & (offsets >= chunk.counts - width)
        slots = torch.where(latest, chunk.positions % width, width)
        write_tokens(self.window_keys, tokens.window_key, slots)
        write_tokens(self.window_values, tokens.window_value, slots)

    def take_raw(self, tokens: Tokens, chunk: Chunk) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the raw keys and values, earlier ones first, [B, Hg, l - 1 + S, D]; keep the l - 1 latest."""
        raw = []
        for kept, new in ((self.raw_keys, tokens.raw_key), (self.raw_values, tokens.raw_value)):
            joined = torch.cat([kept, new.permute(1, 2, 0, 3)], dim=2)
            latest = chunk.counts[:, None] + torch.arange(kept.shape[2], device=kept.device)
            kept.copy_(joined.gather(2, latest[:, None, :, None].expand_as(kept)))
            raw.append(joined)
        return raw[0], raw[1]

    def write_compressed(self, key: torch.Tensor, value: torch.Tensor, nsa: NSAConfig, chunk: Chunk) -> None:
        """Write the compressed keys and values [S, B, Hg, D] of those new tokens that end a block."""
        first = chunk.positions + 1 - nsa.compress_block
        offsets = torch.arange(len(first), device=first.device)[:, None]
        ends = (first >= 0) & (first % nsa.compress_stride == 0) & (offsets < chunk.counts)
        slots = torch.where(ends, first // nsa.compress_stride, self.compressed_keys.shape[2] - 1)
        write_tokens(self.compressed_keys, key, slots)
        write_tokens(self.compressed_values, value, slots)

    def fill(self, tokens: Tokens, key: torch.Tensor, value: torch.Tensor, chunk: Chunk) -> None:
        """Write the first tokens of the sequences, and their compressed keys and values [N, C, D]."""
        self.write_whole(tokens, chunk)
        self.write_window(tokens, chunk)
        self.take_raw(tokens, chunk)
        slots = min(key.shape[1], self.compressed_keys.shape[2])
        rows = len(self.compressed_keys)
        self.compressed_keys[:, :, :slots] = key.unflatten(0, (rows, -1))[:, :, :slots]
        self.compressed_values[:, :, :slots] = value.unflatten(0, (rows, -1))[:, :, :slots]


def continued(
    state: NSAState, nsa: NSAConfig, chunk: Chunk, query: torch.Tensor, tokens: Tokens, compress: Compress, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Write new tokens into the state and attend to it: query [N, S, G, D] → each branch's output, [N, S, G, D]."""
    query = query * scale
    positions = chunk.positions.t().repeat_interleave(len(query) // chunk.positions.shape[1], dim=0)
    state.write_compressed(*compress(*state.take_raw(tokens, chunk)), nsa, chunk)
    compressed, probabilities = _compressed(state, nsa, chunk.reach, query, positions)
    state.write_whole(tokens, chunk)
    selected = _selected(state, nsa, chunk.reach, query, positions, probabilities)
    return compressed, selected, _window(state, nsa, chunk, query, positions, tokens)


def _compressed(
    state: NSAState, nsa: NSAConfig, reach: int, query: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the branch's output and its probabilities [N, S, G, K] over the K compressed keys within the reach."""
    read = max((reach - nsa.compress_block) // nsa.compress_stride + 1, 1)
    keys = state.compressed_keys.flatten(0, 1)[:, None, :read]
    past = torch.div(positions + 1 - nsa.compress_block, nsa.compress_stride, rounding_mode="floor") + 1
    hidden = (torch.arange(read, device=past.device) >= past[..., None])[:, :, None]
    probabilities = _softmax(query @ keys.transpose(2, 3), hidden)
    return probabilities.to(query.dtype) @ state.compressed_values.flatten(0, 1)[:, None, :read], probabilities


def _selected(
    state: NSAState,
    nsa: NSAConfig,
    reach: int,
    query: torch.Tensor,
    positions: torch.Tensor,
    probabilities: torch.Tensor,
) -> torch.Tensor:
    """Choose each query's blocks by its probabilities over compressed keys, gather them, and attend to them."""
    blocks = -(-reach // nsa.select_block)
    choice = Choice(nsa.select_block, min(nsa.select_count, blocks), nsa.compress_block, nsa.compress_stride)
    chosen = choose_blocks(probabilities.sum(dim=2), positions, blocks, choice)
    numbers = torch.arange(len(chosen), device=chosen.device)[:, None, None], chosen.clamp(min=0)
    keys, values = (
        kept.view(len(query), -1, nsa.select_block, kept.shape[3])[numbers].flatten(2, 3)
        for kept in (state.selected_keys, state.selected_values)
    )
    places = chosen[..., None] * nsa.select_block + torch.arange(nsa.select_block, device=chosen.device)
    hidden = (places > positions[..., None, None]) | (chosen < 0)[..., None]
    shares = _softmax(query @ keys.transpose(2, 3), hidden.flatten(2)[:, :, None])
    return shares.to(query.dtype) @ values


def _window(
    state: NSAState, nsa: NSAConfig, chunk: Chunk, query: torch.Tensor, positions: torch.Tensor, tokens: Tokens
) -> torch.Tensor:
    """Attend to the window of latest tokens, and write the new ones into it."""
    width = state.window_keys.shape[2] - 1
    alone = len(chunk.positions) == 1
    if alone:
        # Written first: the token that it replaces has left the window.
        state.write_window(tokens, chunk)
    latest = chunk.positions[0] - (0 if alone else 1)
    places = latest[:, None] - (latest[:, None] - torch.arange(width, device=latest.device)) % width
    keys, values = state.window_keys[:, :, :width], state.window_values[:, :, :width]
    if not alone:
        places = torch.cat([places, chunk.positions.t()], dim=1)
        keys = torch.cat([keys, tokens.window_key.permute(1, 2, 0, 3)], dim=2)
        values = torch.cat([values, tokens.window_value.permute(1, 2, 0, 3)], dim=2)
        state.write_window(tokens, chunk)
    places = places.repeat_interleave(keys.shape[1], dim=0)[:, None]
    own = positions[..., None]
    hidden = (places < 0) | (places > own) | (places <= own - nsa.window)
    shares = _softmax(query @ keys.flatten(0, 1)[:, None].transpose(2, 3), hidden[:, :, None])
    return shares.to(query.dtype) @ values.flatten(0, 1)[:, None]


def _softmax(scores: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Return the softmax in float32 of scores [N, S, G, K] over the keys that are not hidden; 0 where all are."""
    shown = scores.float().masked_fill(hidden, -torch.inf)
    return shown.softmax(dim=-1).masked_fill(hidden, 0.0)
