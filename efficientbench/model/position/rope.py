"""Rotary position embedding (arXiv 2104.09864, equation 34)."""

from __future__ import annotations

import torch

from efficientbench.model import context_parallel
from efficientbench.model.kernels.rope import rotate
from efficientbench.model.position.base import Position


class Rope(Position):
    """Rotates queries and keys by angles that grow with position."""

    def __init__(self, base: float, dim: int) -> None:
        """base: of the frequencies; dim: how many dimensions of a head, its last ones, are rotated."""
        self.base = base
        self.dim = dim
        self._angles: tuple[torch.Tensor, torch.Tensor] | None = None

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """Rotated queries or keys; [S, B, heads, D] → the same shape."""
        cos, sin = self.angles(x)
        return rotate(x, cos, sin)

    def angles(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [S, 1, 1, dim / 2] for the sequence length, dtype and device of `like` [S, ...]."""
        cached = self._angles
        if cached is None or cached[0].shape[0] != like.shape[0] or cached[0].dtype != like.dtype:
            exponents = torch.arange(0, self.dim, 2, dtype=torch.float32, device=like.device) / self.dim
            positions = context_parallel.positions(like.shape[0], like.device).float()
            angles = torch.outer(positions, self.base**-exponents)[:, None, None, :]
            cached = self._angles = (angles.cos().to(like.dtype), angles.sin().to(like.dtype))
        return cached
