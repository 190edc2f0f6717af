"""NoPE, no positional encoding (arXiv 2305.19466): order is known from the causal mask alone."""

from __future__ import annotations

from efficientbench.model.position.base import Position


class NoPosition(Position):
    """Leaves embedding, queries, keys and scores as they are."""
