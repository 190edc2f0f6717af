"""What a positional encoding may do to a model, and where."""

from __future__ import annotations

import torch


class Position:
    """A positional encoding; one object serves all layers of a pipeline stage.

    It may add to the embedding, change queries and keys, and add to the scores. Each of the three leaves everything as
    it is unless a subclass says otherwise.
    """

    table: torch.nn.Parameter | None = None
    """What the encoding trains on this stage. The model registers it, and no layer does: it has one name."""

    def embed(self, embedded: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Embedded tokens [S, B, H] at the given positions [S] → [S, B, H]. Called on the first stage only."""
        return embedded

    def rotate(self, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
        """Queries or keys [S, B, heads, D] of this context-parallel rank, or of every `stride`-th token where one rank
        holds them all → the same shape."""
        return x

    def bias(self, sequence: int) -> torch.Tensor | None:
        """[heads, S]: what is added to the score of a query and the key d tokens before it, for d from 0 and this
        tensor-parallel rank's query heads; None adds nothing."""
        return None
