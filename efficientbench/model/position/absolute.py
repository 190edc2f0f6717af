"""Sinusoidal position encoding, fixed (arXiv 1706.03762, sections 3.4 and 3.5)."""

from __future__ import annotations

import torch

from efficientbench.model.position.base import Position

BASE = 10_000.0
"""Wavelengths rise from 2π to this times 2π."""


class Absolute(Position):
    """Adds sinusoids to the embedding: in dimension 2k sin(p / BASE^(2k / H)) of position p, in 2k + 1 its cosine.

    The embedding is multiplied by √H first, as in the paper: sinusoids are of the size of one, and trained weights of
    init_std would be lost beside them.
    """

    def embed(self, embedded: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Embedded tokens [S, B, H] at positions [S], scaled, with their sinusoids added."""
        added = sinusoids(positions, embedded.shape[-1]).to(embedded.dtype)
        return embedded * embedded.shape[-1] ** 0.5 + added[:, None, :]


def sinusoids(positions: torch.Tensor, width: int) -> torch.Tensor:
    """positions [S] → [S, width] float32."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) / width
    angles = torch.outer(positions.float(), BASE**-exponents)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :width]
