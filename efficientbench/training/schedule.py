"""The learning rate of each step."""

from __future__ import annotations

import math

from efficientbench.config.schema import TrainingConfig


def learning_rate(training: TrainingConfig, step: int, steps: int) -> float:
    """Return the rate of a step, counted from 1: linear warm-up, then half a cosine (arXiv 1608.03983, equation 5)."""
    warmup = round(training.lr_warmup_fraction * steps)
    if step <= warmup:
        return training.learning_rate * step / warmup
    progress = (step - warmup) / max(steps - warmup, 1)
    depth = 0.5 * (1 + math.cos(math.pi * progress))
    return training.min_learning_rate + (training.learning_rate - training.min_learning_rate) * depth
