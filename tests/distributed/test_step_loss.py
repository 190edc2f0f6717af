"""A step in which every sequence has another number of targets: one loss and one norm, whatever the layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.configs import tiny
from support.ranks import Ranks
from support.tiny_training import Observed, tiny_training

from efficientbench.config.schema import RunConfig

STEPS = 2
LAYOUTS = {
    "DP 2": (2, ["parallel.dp=2"]),
    "TP 2, SP": (2, ["parallel.tp=2", "parallel.sp=true"]),
    "PP 2": (2, ["parallel.pp=2"]),
    "CP 2": (2, ["parallel.cp=2"]),
    "micro-batches of one": (1, ["training.micro_batch_size=1"]),
}


def targets(sample: int, length: int) -> int:
    """How many of a sample's positions are targets."""
    return 1 + sample * sample * 5 % length


class Uneven:
    """Samples of which the last positions alone are targets."""

    def __init__(self, samples: Any, length: int) -> None:
        self.samples, self.length = samples, length

    def __getitem__(self, sample: int) -> dict[str, Any]:
        found = dict(self.samples[sample])
        found["loss_mask"] = found["loss_mask"].clone()
        found["loss_mask"][: self.length - targets(sample, self.length)] = 0
        return found


def uneven_steps(config: RunConfig, prefix: Path) -> tuple[list[float], list[float], list[int]]:
    """Loss, norm and targets of each step."""
    from efficientbench.training.data.batch import Batch
    from efficientbench.training.events import Event, StepEnded

    observed, counted = Observed(), list[int]()

    def count(event: Event) -> None:
        if isinstance(event, StepEnded):
            counted.append(event.supervised_tokens)

    with tiny_training(config, prefix, STEPS, observed.listen, count) as trainer:
        batches, size, length = trainer.batches, config.training.global_batch_size, config.training.seq_len
        batches.training = Uneven(batches.training, length)  # type: ignore[assignment]
        whole = batches.training_step
        replicas = config.parallel.dp * config.parallel.cp

        def training_step(step: int) -> Iterator[Batch]:
            step_targets = sum(targets(sample, length) for sample in range((step - 1) * size, step * size))
            divisor = step_targets / (batches.micro_batches * replicas)
            return (replace(batch, divisor=divisor) for batch in whole(step))

        batches.training_step = training_step  # type: ignore[method-assign]
        for step in range(1, STEPS + 1):
            trainer.train_step(step)
    return observed.losses, observed.norms, counted


@pytest.fixture(scope="module")
def single(ranks: Callable[[int], Ranks], corpus: Path) -> tuple[list[float], list[float], list[int]]:
    return ranks(1).call(uneven_steps, tiny("gqa_1.5B", f"data.cache={corpus.parent}"), corpus)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_divides_by_the_targets_of_the_global_step(
    layout: str, ranks: Callable[[int], Ranks], corpus: Path, single: tuple[list[float], list[float], list[int]]
) -> None:
    size, overrides = LAYOUTS[layout]
    config = tiny("gqa_1.5B", f"data.cache={corpus.parent}", *overrides)
    length, batch = config.training.seq_len, config.training.global_batch_size
    for losses, norms, counted in ranks(size).call(uneven_steps, config, corpus):
        assert counted == single[2]
        assert counted == [
            sum(targets(sample, length) for sample in range(step * batch, (step + 1) * batch)) for step in range(STEPS)
        ]
        assert losses == pytest.approx(single[0], rel=1e-5)
        assert norms == pytest.approx(single[1], rel=1e-5)
