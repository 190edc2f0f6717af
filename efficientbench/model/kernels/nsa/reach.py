"""The consecutive keys that a query sees in the compressed and in the window branch of NSA."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Reach(NamedTuple):
    """Which keys a query sees: the latest `width` of those whose tokens all lie in its past (itself included)."""

    length: int = 1
    """Consecutive tokens that a key stands for."""
    stride: int = 1
    """Tokens from the start of one key to the start of the next."""
    width: int | None = None
    """The most keys that a query sees; None: all in its past."""

    def last(self, query: int) -> int:
        """Return one past the last key that the query at this position sees."""
        return max((query + 1 - self.length) // self.stride + 1, 0)

    def first(self, query: int) -> int:
        """Return the first key that the query at this position sees."""
        return 0 if self.width is None else max(self.last(query) - self.width, 0)

    def hidden(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return True where a query does not see a key; positions [C] and keys' numbers [K] → [C, K]."""
        return ~self.sees(queries[:, None], keys)

    def sees(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Return True where the query at a position sees a key with a number; shapes that broadcast."""
        room = query + 1 - self.length
        past = key * self.stride <= room
        # The key `width` later would be one too many.
        return past if self.width is None else past & ((key + self.width) * self.stride > room)
