"""The cache of decoding: a state of the tokens so far in each attention layer, and how many tokens each row has.

A layer's state is known to that layer alone. It may hold keys and values, or a recurrent layer's state.
B = rows (sequences), S = tokens of a row in one forward pass, T = tokens that a row has room for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from efficientbench.model.position import Position


class State:
    """What one layer keeps. Every attribute is a tensor with the rows first, [B, …], written in place."""

    def change(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Put what `function` returns in the place of each tensor."""
        for name, tensor in vars(self).items():
            setattr(self, name, function(tensor))


class KeysAndValues(State):
    """The keys and values of all tokens."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take keys [B, groups, T, D] and values [B, groups, T, E]."""
        self.keys, self.values = keys, values


def write_tokens(kept: torch.Tensor, new: torch.Tensor, positions: torch.Tensor) -> None:
    """Write new [S, B, groups, D] into kept [B, groups, T, D] at positions [S, B]."""
    kept[torch.arange(kept.shape[0], device=kept.device), :, positions] = new


@dataclass
class Chunk:
    """The tokens that one forward pass adds to each row, as all layers see them."""

    positions: torch.Tensor
    """[S, B]"""
    counts: torch.Tensor
    """[B], how many of a row's S tokens count; those behind only fill up the row, and later tokens replace them."""
    fresh: bool
    """Whether the rows had no tokens before these."""
    reach: int
    """How many positions hold all tokens so far; what lies behind need not be read."""
    position: Position
    """The positional encoding."""
    _at_positions: Position | None = field(default=None, init=False)
    _mask: torch.Tensor | None = field(default=None, init=False)

    def keep(self, kept: torch.Tensor, new: torch.Tensor) -> None:
        """Write new [S, B, groups, D] of the chunk's tokens into kept [B, groups, T, D]."""
        if self.fresh:
            # One copy, which takes a part of the time of finding each token's place.
            kept[:, :, : len(new)] = new.permute(1, 2, 0, 3)
        else:
            write_tokens(kept, new, self.positions)

    def at_positions(self) -> Position:
        """Return the encoding that turns queries and keys by the chunk's positions."""
        if self._at_positions is None:
            self._at_positions = self.position.at(self.positions)
        return self._at_positions

    def mask(self) -> torch.Tensor:
        """Return what is added to scores, [B, heads or 1, S, reach] float32: −∞ for later keys, else the bias."""
        if self._mask is None:
            keys = torch.arange(self.reach, device=self.positions.device)
            distances = self.positions.t()[:, :, None] - keys
            bias = self.position.bias(self.reach)
            added = torch.zeros_like(distances, dtype=torch.float32)[:, None]
            if bias is not None:
                added = bias.float()[:, distances.clamp(min=0)].transpose(0, 1)
            self._mask = added.masked_fill(distances[:, None] < 0, -torch.inf)
        return self._mask


class Stateful:
    """An attention layer that can go on from what it has kept of earlier tokens."""

    decodes_by = "the layer's own code"
    """The kernel that attends to what is kept, for records."""

    state: State | None = None
    """Set while a cache is bound to the model: `forward` then continues from it."""
    cache: Cache | None = None
    """The model's; its `chunk` says where the tokens of the present forward pass lie."""

    def new_state(self, rows: int, tokens: int) -> State:
        """Return the state of `rows` sequences that have no tokens yet, with room for `tokens` each."""
        raise NotImplementedError


class Caching(Protocol):
    """A model that reads from a cache while it has one, as GPT does."""

    cache: Cache | None
    decoder: Any
    """Megatron's block of layers."""

    def modules(self) -> Iterator[torch.nn.Module]: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...


class Cache:
    """The states of all layers of a model that one rank holds whole or shares with tensor-parallel ranks."""

    chunk: Chunk
    """Of the present forward pass."""

    def __init__(self, model: Caching, rows: int, tokens: int) -> None:
        """Allocate all that `rows` sequences of up to `tokens` tokens need."""
        self.model, self.tokens = model, tokens
        self.layers = [layer for layer in model.modules() if isinstance(layer, Stateful)]
        if len(self.layers) != len(model.decoder.layers):
            # Their declaration says that they are.
            raise TypeError(f"{len(self.layers)} of the {len(model.decoder.layers)} attention layers are Stateful")
        device = next(model.parameters()).device
        with device:
            self.states = [layer.new_state(rows, tokens) for layer in self.layers]
            self.lengths = torch.zeros(rows, dtype=torch.int64)
            self.counts = torch.ones(rows, dtype=torch.int64)
            """How many tokens of each row count in the next forward pass: all of one, unless set before it."""
        self.fresh = True
        self.reach = tokens
        """How many positions the next forward pass reads: at least as many as its last token needs."""

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        """Return the bytes of the memory behind all tensors held."""
        tensors = [self.lengths, self.counts, *(each for state in self.states for each in vars(state).values())]
        return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Let the model's forward passes continue from this cache. One cache at a time can be bound to a model."""
        if self.model.cache is not None:
            raise RuntimeError("this model is generating already: it continues from one cache at a time")
        # As plain attributes: torch.compile with fullgraph=True refuses context variables.
        self.model.cache = self
        for layer, state in zip(self.layers, self.states, strict=True):
            layer.state, layer.cache = state, self
        try:
            yield
        finally:
            self.model.cache = None
            for layer in self.layers:
                layer.state = layer.cache = None

    def begin(self, tokens: torch.Tensor, position: Position) -> Chunk:
        """Return the chunk of a forward pass over tokens [B, S]; the layers find it here."""
        offsets = torch.arange(tokens.shape[1], device=tokens.device)[:, None]
        self.chunk = Chunk(self.lengths + offsets, self.counts, self.fresh, self.reach, position)
        return self.chunk

    def advance(self) -> None:
        """Count the tokens that the last forward pass has added to each row."""
        self.lengths += self.counts
        self.counts.fill_(1)
        self.fresh = False

    def expand(self, copies: int) -> None:
        """Put `copies` of each row in its place, one after the other."""
        self._change(lambda tensor: tensor.repeat_interleave(copies, dim=0))

    def select(self, rows: torch.Tensor) -> None:
        """Keep the rows with these numbers, in this order."""
        self._change(lambda tensor: tensor.index_select(0, rows))

    def _change(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        for state in self.states:
            state.change(function)
        self.lengths, self.counts = function(self.lengths), function(self.counts)
