"""Gradient norms of a few steps on the ranks of a pool: ours and megatron's."""

from __future__ import annotations

from pathlib import Path

import torch

from efficientbench.config.schema import RunConfig


def norms_beside_megatrons(config: RunConfig, prefix: Path, steps: int) -> list[tuple[float, float]]:
    """Train `steps` steps and return (ours, megatron's) norm of each, before clipping."""
    from efficientbench.model.gpt import build_stages
    from efficientbench.training import groups
    from efficientbench.training.batches import Batches, Vocabulary
    from efficientbench.training.optimizer import build_optimizer, wrap_data_parallel
    from efficientbench.training.trainer import Trainer

    norms, device = [], torch.device("cpu")
    with groups.model_parallel(config.parallel, config.training.seed):
        stages = [wrap_data_parallel(stage, config) for stage in build_stages(config, device)]
        optimizer = build_optimizer(stages, config)
        batches = Batches(config, steps, [prefix], Vocabulary(config.model.vocab_size, 0, {"name": "tiny"}), device)
        trainer = Trainer(config, steps, stages, optimizer, batches, [])
        queued = trainer.queued
        assert queued is not None
        ours = queued.norm

        def norm_beside_megatrons() -> torch.Tensor:
            norm = ours()
            norms.append((norm.item(), optimizer.get_grad_norm()))
            return norm

        queued.norm = norm_beside_megatrons  # type: ignore[method-assign]
        for step in range(1, steps + 1):
            trainer.train_step(step)
    return norms
