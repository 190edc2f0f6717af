"""Trained position embedding, a row for each position, as in GPT-2."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from megatron.core.transformer import TransformerConfig

from efficientbench.model.position.base import Position


class LearnableAbsolute(Position):
    """Adds a trained row to each embedded token. For the first pipeline stage, which alone embeds."""

    def __init__(self, rows: int, config: TransformerConfig) -> None:
        """rows: the longest sequence. The table [rows, H] is whole on every tensor-parallel rank."""
        self.table = torch.nn.Parameter(
            torch.empty(rows, config.hidden_size, dtype=config.params_dtype, device=torch.get_default_device())
        )
        # Each rank adds only the rows of its part of the sequence: megatron sums gradients of parameters marked so.
        self.table.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def embed(self, embedded: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Embedded tokens [S, B, H] at positions [S], with their rows added."""
        assert self.table is not None
        return embedded + F.embedding(positions, self.table)[:, None, :]
