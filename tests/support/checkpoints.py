"""What the ranks of a pool run to save checkpoints and go on from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from efficientbench.config.schema import RunConfig


@dataclass
class Trained:
    """Steps on one rank."""

    losses: list[float] = field(default_factory=list)
    norms: list[float | None] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)
    began_after: int = 0


def train(
    config: RunConfig,
    prefix: Path,
    steps: int,
    folder: Path,
    resume: Path | None = None,
    prepare: Callable[[], None] | None = None,
) -> Trained:
    """Train to step `steps`, saving into the run folder `folder` as the configuration says; `resume`: go on from there.

    `prepare` is called on each rank before.
    """
    import torch
    import torch.distributed as dist

    from efficientbench.config.layout import Layout
    from efficientbench.model.gpt import build_stages
    from efficientbench.training import groups
    from efficientbench.training.batches import Batches, Vocabulary
    from efficientbench.training.checkpoints.held import held_parameters
    from efficientbench.training.checkpoints.manager import Checkpoints
    from efficientbench.training.events import Event, StepEnded, ValidationEnded
    from efficientbench.training.optimizer import build_optimizer, wrap_data_parallel
    from efficientbench.training.trainer import Trainer

    if prepare is not None:
        prepare()
    outcome = Trained()

    def listen(event: Event) -> None:
        if isinstance(event, StepEnded):
            outcome.losses.append(event.loss)
            outcome.norms.append(event.gradient_norm)
        elif isinstance(event, ValidationEnded):
            outcome.validation_losses.append(event.loss)

    device = torch.device("cpu")
    with groups.model_parallel(config.parallel, config.training.seed):
        models = build_stages(config, device)
        stages = [wrap_data_parallel(model, config) for model in models]
        optimizer = build_optimizer(stages, config)
        vocabulary = Vocabulary(config.model.vocab_size, 0, {"name": "tiny"})
        batches = Batches(config, steps, [prefix], vocabulary, device)
        layout = Layout.of(config, dist.get_world_size(), oversubscribe=True)
        held = held_parameters(models, config.model)
        checkpoints = Checkpoints(config, layout, steps, ["the corpus"], folder, held, optimizer)
        before = checkpoints.restore(resume) if resume is not None else None
        outcome.began_after = before.step if before is not None else 0
        Trainer(config, steps, stages, optimizer, batches, [listen], None, checkpoints, before).train(lambda: False)
    return outcome


def slow_writer_on_rank_1() -> None:
    """From now on rank 1 takes longer to write its part than any limit allows."""
    import time

    import torch.distributed as dist

    from efficientbench.training.checkpoints import storage

    write = storage.FileSystemWriterAsync.write_preloaded_data

    def wait_and_write(*arguments: object) -> None:
        time.sleep(5)
        write(*arguments)

    if dist.get_rank() == 1:
        storage.FileSystemWriterAsync.write_preloaded_data = staticmethod(wait_and_write)


def dying_writer() -> None:
    """From now on the process that writes dies by SIGKILL, as where memory runs out; it must be one of its own."""
    import signal

    from efficientbench.training.checkpoints import storage

    parent = os.getpid()

    def die(*arguments: object) -> None:
        assert os.getpid() != parent
        os.kill(os.getpid(), signal.SIGKILL)

    storage.FileSystemWriterAsync.write_preloaded_data = staticmethod(die)


def two_threads() -> None:
    """From now on this rank's computations are shared out among threads, as on any machine of several cores."""
    import torch

    torch.set_num_threads(2)
