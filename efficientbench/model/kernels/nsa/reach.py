"""The consecutive keys that a query sees in a sliding window, or in the compressed and the window branch of NSA."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Reach(NamedTuple):
    """The keys that a query sees: the latest `width` keys whose tokens are all at or before its position."""

    length: int = 1
    """Consecutive tokens that a key stands for."""
    stride: int = 1
    """Tokens from the start of one key to the start of the next."""
    width: int | None = None
    """The most keys that a query sees; None: no limit."""
    offset: int = 0
    """The position of the first query; that of the first key is 0."""

    @property
    def blind(self) -> int:
        """How many of the first queries see no key."""
        return max(self.length - 1 - self.offset, 0)

    def last(self, query: int) -> int:
        """Return one past the last key that the query of this number sees."""
        return max((query + self.offset + 1 - self.length) // self.stride + 1, 0)

    def first(self, query: int) -> int:
        """Return the first key that the query of this number sees."""
        return 0 if self.width is None else max(self.last(query) - self.width, 0)

    def hidden(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return True where a query does not see a key: query numbers [C], key numbers [K] → [C, K]."""
        return ~self.sees(queries[:, None], keys)

    def sees(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Return True where a query sees a key, for query and key numbers whose shapes broadcast."""
        room = query + (self.offset + 1 - self.length)
        past = key * self.stride <= room
        # A key is too early if the key `width` later is in the past too.
        return past if self.width is None else past & ((key + self.width) * self.stride > room)
