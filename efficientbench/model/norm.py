"""The norm of every layer, which megatron's own refuses under sequence parallelism."""

from __future__ import annotations

import torch

from efficientbench.model.engine_config import EngineConfig
from efficientbench.model.kernels.norm import rms_norm


class RMSNorm(torch.nn.Module):
    """RMSNorm over the last dimension, with the constructor that megatron's ModuleSpecs call."""

    def __init__(self, config: EngineConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.fuse = config.fuse
        self.weight = torch.nn.Parameter(
            torch.ones(hidden_size, dtype=config.params_dtype, device=torch.get_default_device())
        )
        # Each rank sees only its part of the sequence: megatron sums gradients of parameters marked so.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., H] → [..., H]."""
        return rms_norm(x, self.weight, self.eps, self.fuse)
