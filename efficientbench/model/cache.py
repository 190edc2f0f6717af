"""The cache of decoding: each attention layer's state of the earlier tokens, and the number of tokens in each row.

Only the layer itself knows what its state holds: keys and values, or a recurrent state.
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
    """The state of one layer. Every attribute is a tensor with the rows first, [B, …], written in place."""

    def change(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace each tensor by what `function` returns for it."""
        for name, tensor in vars(self).items():
            setattr(self, name, function(tensor))


class KeysAndValues(State):
    """The keys and values of all tokens."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take keys [B, groups, T, D] and values [B, groups, T, E]."""
        self.keys, self.values = keys, values


class Ring(KeysAndValues):
    """The keys and values of the latest tokens: a token has the place of its position modulo their number W."""

    def positions(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the position of the token in each place, [B, W], in rows of so many tokens [B]; negative: none."""
        places = torch.arange(self.keys.shape[2], device=lengths.device)
        last = lengths[:, None] - 1
        return last - (last - places) % len(places)

    def keep(self, chunk: Chunk, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the tokens of a chunk [S, B, groups, D] that count and are among the latest W of their row."""
        lengths = chunk.positions[0]
        offsets = (self.positions(lengths + chunk.counts) - lengths[:, None])[:, None, :, None]
        for kept, new in ((self.keys, key), (self.values, value)):
            by_row = new.permute(1, 2, 0, 3)
            index = offsets.clamp(min=0).expand(-1, by_row.shape[1], -1, by_row.shape[3])
            kept.copy_(torch.where(offsets >= 0, by_row.gather(2, index), kept))

    def hidden(self, chunk: Chunk, window: int) -> torch.Tensor:
        """Return the mask to add to scores of a chunk over the tokens kept before it and its own, [B, 1, S, W + S]."""
        own = chunk.positions.t()
        keys = torch.cat([self.positions(own[:, 0]), own], dim=1)[:, None]
        seen = (keys >= 0) & (keys <= own[:, :, None]) & (keys > own[:, :, None] - window)
        return torch.zeros_like(seen, dtype=torch.float32).masked_fill(~seen, -torch.inf)[:, None]


def write_tokens(kept: torch.Tensor, new: torch.Tensor, positions: torch.Tensor) -> None:
    """Write new [S, B, groups, D] into kept [B, groups, T, D] at positions [S, B]."""
    kept[torch.arange(kept.shape[0], device=kept.device), :, positions] = new


@dataclass
class Chunk:
    """The tokens that one forward pass adds to each row, as all layers see them."""

    positions: torch.Tensor
    """[S, B]"""
    counts: torch.Tensor
    """[B], how many of a row's S tokens count; the rest pads the row, and later tokens overwrite it."""
    fresh: bool
    """Whether the rows had no tokens before this chunk."""
    reach: int
    """How many positions to read: the first `reach` hold all tokens so far."""
    position: Position
    """The positional encoding of embedding and scores."""
    _at_positions: dict[int, Position] = field(default_factory=dict, init=False)
    _mask: torch.Tensor | None = field(default=None, init=False)

    def keep(self, kept: torch.Tensor, new: torch.Tensor) -> None:
        """Write new [S, B, groups, D] of the chunk's tokens into kept [B, groups, T, D]."""
        if self.fresh:
            # One copy takes a fraction of the time of a write by positions.
            kept[:, :, : len(new)] = new.permute(1, 2, 0, 3)
        else:
            write_tokens(kept, new, self.positions)

    def at_positions(self, position: Position) -> Position:
        """Return a layer's encoding that rotates queries and keys by the chunk's positions."""
        if position.number not in self._at_positions:
            self._at_positions[position.number] = position.at(self.positions)
        return self._at_positions[position.number]

    def mask(self) -> torch.Tensor:
        """Return the mask to add to scores, [B, heads or 1, S, reach] float32: −∞ for later keys, else the bias."""
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
    """An attention layer that can decode: it keeps a state of earlier tokens and attends to it."""

    decodes_by = "the layer's own code"
    """The kernel that attends to the state, for records."""

    state: State | None = None
    """The layer's state while a cache is bound to the model; `forward` then attends to it too."""
    cache: Cache | None = None
    """The bound cache; its `chunk` has the positions of the tokens of this forward pass."""

    def new_state(self, rows: int, tokens: int) -> State:
        """Return an empty state for `rows` sequences of up to `tokens` tokens."""
        raise NotImplementedError


class Caching(Protocol):
    """A model to which a cache can be bound, as GPT is."""

    cache: Cache | None
    decoder: Any
    """Megatron's block of layers."""

    def modules(self) -> Iterator[torch.nn.Module]: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...


class Cache:
    """The states of all layers of a model without pipeline stages; tensor-parallel ranks may share the layers."""

    chunk: Chunk
    """The tokens of this forward pass."""

    def __init__(self, model: Caching, rows: int, tokens: int) -> None:
        """Allocate the states of `rows` sequences of up to `tokens` tokens."""
        self.model, self.tokens = model, tokens
        self.layers = [layer for layer in model.modules() if isinstance(layer, Stateful)]
        if len(self.layers) != len(model.decoder.layers):
            # The variant's declaration says that its layers decode.
            raise TypeError(f"{len(self.layers)} of the {len(model.decoder.layers)} attention layers are Stateful")
        device = next(model.parameters()).device
        with device:
            self.states = [layer.new_state(rows, tokens) for layer in self.layers]
            self.lengths = torch.zeros(rows, dtype=torch.int64)
            self.counts = torch.ones(rows, dtype=torch.int64)
            """[B], how many tokens of each row count in the next forward pass: 1, unless set before it."""
        self.fresh = True
        self.reach = tokens
        """How many positions the next forward pass reads: at least up to its last token."""

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        """Return the memory of all the cache's tensors in bytes; shared storage counts once."""
        tensors = [self.lengths, self.counts, *(each for state in self.states for each in vars(state).values())]
        return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Let the model's forward passes read and extend this cache. One cache at a time can be bound to a model."""
        if self.model.cache is not None:
            raise RuntimeError("this model is generating already: it continues from one cache at a time")
        # Plain attributes, because torch.compile with fullgraph=True refuses context variables.
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
        """Set and return the chunk of a forward pass over tokens [B, S]."""
        offsets = torch.arange(tokens.shape[1], device=tokens.device)[:, None]
        self.chunk = Chunk(self.lengths + offsets, self.counts, self.fresh, self.reach, position)
        return self.chunk

    def advance(self) -> None:
        """Add the tokens of the last forward pass to each row's length."""
        self.lengths += self.counts
        self.counts.fill_(1)
        self.fresh = False

    def expand(self, copies: int) -> None:
        """Replace each row by `copies` adjacent copies of it."""
        self._change(lambda tensor: tensor.repeat_interleave(copies, dim=0))

    def select(self, rows: torch.Tensor) -> None:
        """Keep the rows with these numbers, in this order."""
        self._change(lambda tensor: tensor.index_select(0, rows))

    def _change(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        for state in self.states:
            state.change(function)
        self.lengths, self.counts = function(self.lengths), function(self.counts)
