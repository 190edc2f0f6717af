"""How fast batches come from the mapped files, and how fast a model trains on them, on one rank."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from efficientbench.config.schema import RunConfig


def reading_and_training_s(
    config: RunConfig, prefixes: list[Path], vocab_size: int, rounds: int
) -> list[tuple[float, float]]:
    """The time of an optimizer step's batches, read, and of the step on them, in each round, in turn; after a warm-up
    round. Each round reads other samples, which were not read before."""
    import torch

    from efficientbench.model.gpt import build_stages
    from efficientbench.training import groups
    from efficientbench.training.batches import Batch, Batches, Vocabulary
    from efficientbench.training.optimizer import build_optimizer, wrap_data_parallel
    from efficientbench.training.trainer import Trainer

    class Given:
        """Batches that were read before."""

        device = torch.device("cpu")

        def __init__(self, batches: list[Batch]) -> None:
            self.batches = batches

        @property
        def micro_batches(self) -> int:
            return len(self.batches)

        def training_step(self, step: int) -> Iterator[Batch]:
            return iter(self.batches)

    device = torch.device("cpu")
    times_s = []
    with groups.model_parallel(config.parallel, config.training.seed):
        batches = Batches(config, rounds + 1, prefixes, Vocabulary(vocab_size, 0, {"name": "speed"}), device)
        stages = [wrap_data_parallel(stage, config) for stage in build_stages(config, device)]
        trainer = Trainer(config, rounds + 1, stages, build_optimizer(stages, config), Given([]), [])
        for step in range(1, rounds + 2):
            begin_s = time.perf_counter()
            read = list(batches.training_step(step))
            reading_s = time.perf_counter() - begin_s
            trainer.batches = Given(read)
            begin_s = time.perf_counter()
            trainer.train_step(step)
            times_s.append((reading_s, time.perf_counter() - begin_s))
    return times_s[1:]
