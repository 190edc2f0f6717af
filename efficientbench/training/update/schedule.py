"""The learning rate of each step.

t = step, counted from 1; N = steps of the run; W, D = steps of the rise and of the fall; p, e = rates at the peak and
of the last step; s = `training.lr_scale`. The rate is s times:

- t ≤ W: p · t / W
- N - D ≥ t > W: p
- t > N - D, with x = (t - (N - D)) / D: e + (p - e) · ½ (1 + cos πx) by a cosine (arXiv 1608.03983, equation 5),
  e + (p - e) · (1 - x) along a line

WSD (warmup, stable, decay; arXiv 2405.18392, section 3), which records call trapezoid, has a D of its own; the others
fall from the end of the rise on: D = N - W.
"""

from __future__ import annotations

import math

from efficientbench.config.training import TrainingConfig


def learning_rate(training: TrainingConfig, step: int, steps: int) -> float:
    """Return the rate of a step, counted from 1, by the formula above."""
    warmup = training.rise_steps(steps)
    fall = training.fall_steps(steps) if training.lr_schedule == "trapezoid" else steps - warmup
    peak, end = training.learning_rate * training.lr_scale, training.min_learning_rate * training.lr_scale
    if step <= warmup:
        return peak * step / warmup
    if step <= steps - fall:
        return peak
    progress = (step - (steps - fall)) / fall
    depth = 0.5 * (1 + math.cos(math.pi * progress)) if training.lr_schedule == "cosine" else 1 - progress
    return end + (peak - end) * depth
