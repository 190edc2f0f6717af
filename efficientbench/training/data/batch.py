"""What a model reads at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one data-parallel rank, on its device; under context parallelism S is this rank's part."""

    tokens: torch.Tensor
    """[B, S]"""
    labels: torch.Tensor
    """[B, S]: the tokens that follow."""
    weights: torch.Tensor
    """[B, S] float32: what the loss of each position is multiplied by; 0 leaves it out."""
    targets: int
    """How many of its positions the step's mean loss counts, whatever their weights add up to."""
    divisor: float
    """What the weighted losses of a training step are divided by: the step's targets over all ranks, for one
    micro-batch of one replica (a rank of data or context parallelism)."""
