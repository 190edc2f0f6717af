"""Gradient norms of a few steps on the ranks of a pool: ours and megatron's."""

from __future__ import annotations

from pathlib import Path

import torch
from support.tiny_training import tiny_training

from efficientbench.config.schema import RunConfig


def norms_beside_megatrons(config: RunConfig, prefix: Path, steps: int) -> list[tuple[float, float]]:
    """Train `steps` steps and return (ours, megatron's) norm of each, before clipping."""
    norms = []
    with tiny_training(config, prefix, steps) as trainer:
        queued = trainer.queued
        assert queued is not None
        ours = queued.norm

        def norm_beside_megatrons() -> torch.Tensor:
            norm = ours()
            norms.append((norm.item(), trainer.optimizer.get_grad_norm()))
            return norm

        queued.norm = norm_beside_megatrons  # type: ignore[method-assign]
        for step in range(1, steps + 1):
            trainer.train_step(step)
    return norms
