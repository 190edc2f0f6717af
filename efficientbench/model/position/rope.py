"""Rotary position embedding (arXiv 2104.09864, equation 34)."""

from __future__ import annotations

import torch

from efficientbench.config.schema import ModelConfig
from efficientbench.model.kernels.rope import rotate


class Rope:
    """Rotates queries and keys by angles that grow with position. One object serves all layers of a model."""

    def __init__(self, model: ModelConfig) -> None:
        self.base = model.position.base
        self.head_dim = model.head_dim
        self._angles: tuple[torch.Tensor, torch.Tensor] | None = None

    def encode(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated query and key; [S, B, heads, D] and [S, B, groups, D]."""
        cos, sin = self.angles(query)
        return rotate(query, cos, sin), rotate(key, cos, sin)

    def angles(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [S, 1, 1, D/2] for the sequence length, dtype and device of `like` [S, ...]."""
        cached = self._angles
        if cached is None or cached[0].shape[0] != like.shape[0] or cached[0].dtype != like.dtype:
            exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=like.device) / self.head_dim
            positions = torch.arange(like.shape[0], dtype=torch.float32, device=like.device)
            angles = torch.outer(positions, self.base**-exponents)[:, None, None, :]
            cached = self._angles = (angles.cos().to(like.dtype), angles.sin().to(like.dtype))
        return cached
