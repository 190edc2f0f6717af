"""Rotary position embedding (arXiv 2104.09864, equation 34)."""

from __future__ import annotations

import torch

from efficientbench.model import context_parallel
from efficientbench.model.kernels.rope import rotate
from efficientbench.model.position.base import Position


class Rope(Position):
    """Rotates queries and keys by angles that grow with position."""

    def __init__(self, base: float, dim: int, fuse: bool = False) -> None:
        """base: of the frequencies; dim: how many dimensions of a head, its last ones, are rotated; fuse: by a compiled
        kernel."""
        self.base = base
        self.dim = dim
        self.fuse = fuse
        self._angles: dict[tuple[int, int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def rotate(self, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
        """Rotated queries or keys; [S, B, heads, D], of every `stride`-th token → the same shape."""
        cos, sin = self.angles(x, stride)
        return rotate(x, cos, sin, self.fuse)

    def angles(self, like: torch.Tensor, stride: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [S, 1, 1, dim / 2] for the sequence length, dtype and device of `like` [S, ...]."""
        key = (like.shape[0], stride, like.dtype)
        if key not in self._angles:
            exponents = torch.arange(0, self.dim, 2, dtype=torch.float32, device=like.device) / self.dim
            positions = stride * context_parallel.positions(like.shape[0], like.device).float()
            angles = torch.outer(positions, self.base**-exponents)[:, None, None, :]
            self._angles[key] = (angles.cos().to(like.dtype), angles.sin().to(like.dtype))
        return self._angles[key]
