"""Batches are read before they are asked for, and no further ahead than one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.cells import write_tokens
from support.command_line import until
from support.configs import tiny
from support.ranks import Ranks

from efficientbench.config.schema import RunConfig

SIZE, GLOBAL, STEPS = 2, 4, 3


def reads(config: RunConfig, prefix: Path) -> tuple[list[list[int]], bool]:
    """The samples read by the time that each micro-batch is in use; whether each was read once."""
    import torch

    from efficientbench.training import groups
    from efficientbench.training.batches import Batches, Samples, Vocabulary

    class Watched:
        def __init__(self, samples: Samples) -> None:
            self.samples, self.read = samples, list[int]()

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            self.read.append(index)
            sample: dict[str, torch.Tensor] = self.samples[index]
            return sample

    seen = []
    with groups.model_parallel(config.parallel, config.training.seed):
        batches = Batches(config, STEPS, [prefix], Vocabulary(131, 0, {"name": "tiny"}), torch.device("cpu"))
        batches.training = watched = Watched(batches.training)
        for step in range(1, STEPS + 1):
            for index, batch in enumerate(batches.training_step(step)):
                used = (step - 1) * GLOBAL + (index + 1) * SIZE
                ahead = min(used + SIZE, STEPS * GLOBAL)
                until(lambda ahead=ahead: len(watched.read) >= ahead, f"{ahead} samples read", 30)
                expected = torch.stack([watched.samples[sample]["tokens"] for sample in range(used - SIZE, used)])
                assert torch.equal(batch.tokens, expected)
                seen.append(list(watched.read))
    return seen, len(set(watched.read)) == len(watched.read)


def test_the_next_micro_batch_is_read_while_one_is_in_use(ranks: Callable[[int], Ranks], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    write_tokens(tmp_path / "text", [random.integers(1, 131, 60) for _ in range(100)])
    config = tiny(
        "gqa_1.5B",
        f"data.path={tmp_path / 'text'}",
        f"data.cache={tmp_path}",
        f"training.micro_batch_size={SIZE}",
        f"training.global_batch_size={GLOBAL}",
    )
    ((seen, once),) = ranks(1).call(reads, config, tmp_path / "text")
    # Across the steps' ends, and not past the last step's.
    assert seen == [list(range(min(used + SIZE, STEPS * GLOBAL))) for used in range(SIZE, STEPS * GLOBAL + 1, SIZE)]
    assert once
