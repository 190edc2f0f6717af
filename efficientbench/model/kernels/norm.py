"""RMSNorm (arXiv 1910.07467)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

NAME = "torch rms_norm"


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + epsilon) · weight over the last dimension; x [..., H], weight [H]."""
    return F.rms_norm(x, (x.shape[-1],), weight, epsilon)
