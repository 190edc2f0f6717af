"""How fast batches come from the mapped files, and how fast a model trains on them, on one rank."""

from __future__ import annotations

import time
from pathlib import Path

from support.tiny_training import tiny_training

from efficientbench.config.schema import RunConfig


def reading_and_training_s(config: RunConfig, prefix: Path, rounds: int) -> list[tuple[float, float]]:
    """The time to read an optimizer step's batches, and that of the step on them, in each round after a warm-up.

    Each round reads other samples, which were not read before: every other step's, since the first batch of the next
    step is read ahead.
    """
    times_s = []
    with tiny_training(config, prefix, 2 * rounds + 2) as trainer:
        read_step = trainer.batches.training_step
        for step in range(1, rounds + 2):
            begin_s = time.perf_counter()
            read = list(read_step(2 * step))
            reading_s = time.perf_counter() - begin_s
            trainer.batches.training_step = lambda step, read=read: iter(read)
            begin_s = time.perf_counter()
            trainer.train_step(step)
            times_s.append((reading_s, time.perf_counter() - begin_s))
    return times_s[1:]
