"""The micro-batch that a model reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from efficientbench.model.documents import Documents


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one data-parallel rank, on its device; under context parallelism S is this rank's part."""

    tokens: torch.Tensor
    """[B, S] token ids."""
    labels: torch.Tensor
    """[B, S] ids of the next tokens."""
    weights: torch.Tensor
    """[B, S] float32, the factor on each position's loss; 0 excludes the position."""
    targets: int
    """Positions of the micro-batch that count in the step's mean loss, whatever the sum of their weights."""
    divisor: float
    """The divisor of the weighted losses in training: the step's targets over all ranks, divided by the number of
    micro-batches of all replicas (ranks of data and context parallelism)."""
    documents: Documents | None = None
    """The documents within which tokens attend; None: each row is one."""
