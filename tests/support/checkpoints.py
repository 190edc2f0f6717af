"""What the ranks of a pool run to save checkpoints and resume from them."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from support.configs import tiny
from support.ranks import Ranks
from support.tiny_training import Observed, tiny_training

from efficientbench.config.schema import RunConfig
from efficientbench.training.checkpoints.manifest import read_manifest
from efficientbench.training.checkpoints.read import Weights


@dataclass
class Resumed(Observed):
    """Steps on one rank."""

    began_after: int = 0


def train(
    config: RunConfig,
    prefix: Path,
    steps: int,
    folder: Path,
    resume: Path | None = None,
    prepare: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    limits_s: tuple[float, ...] = (),
) -> Resumed:
    """Train to step `steps`, saving into the run folder `folder` as the configuration says.

    `resume`: a checkpoint to resume from. `prepare()` is in force on each rank meanwhile. `limits_s`: each rank's time
    of measured steps after which the run ends; empty: it trains all steps.
    """
    import torch.distributed as dist

    from efficientbench.config.layout import Layout
    from efficientbench.training.checkpoints.manager import Checkpoints
    from efficientbench.training.checkpoints.shards import sharded_parameters
    from efficientbench.training.time_limit import TimeLimit
    from efficientbench.training.trainer import Trainer

    outcome = Resumed()
    limit = TimeLimit(limits_s[dist.get_rank()], config.measurement) if limits_s else None
    with prepare(), tiny_training(config, prefix, steps) as built:
        layout = Layout.of(config, dist.get_world_size(), oversubscribe=True)
        parameters = sharded_parameters([stage.module for stage in built.stages], config.model)
        checkpoints = Checkpoints(config, layout, steps, ["the corpus"], folder, parameters, built.optimizer)
        outcome.began_after = read_manifest(resume).step if resume is not None else 0
        of_rank = built.stages, built.optimizer, built.batches, [outcome.listen], None, checkpoints, resume, limit
        trainer = Trainer(config, steps, *of_rank)
        trainer.train(lambda: False)
    return outcome


@dataclass
class Begun(Observed):
    """Steps on one rank after weights of another run."""

    updates_before: float = math.nan
    """That the optimizer had made before the first step."""


def begin(
    config: RunConfig, prefix: Path, steps: int, folder: Path, checkpoint: Path, sha256: str | None = None
) -> Begun:
    """Train `steps` steps into the run folder `folder`, beginning with the weights of another run's checkpoint.

    The weights are saved before the first step, too, and validated. `sha256`: of the checkpoint that is wanted.
    """
    import torch.distributed as dist

    from efficientbench.config.layout import Layout
    from efficientbench.training.checkpoints import contents
    from efficientbench.training.checkpoints.manager import Checkpoints
    from efficientbench.training.checkpoints.shards import sharded_parameters
    from efficientbench.training.trainer import Trainer

    outcome = Begun()
    with tiny_training(config, prefix, steps) as built:
        layout = Layout.of(config, dist.get_world_size(), oversubscribe=True)
        parameters = sharded_parameters([stage.module for stage in built.stages], config.model)
        checkpoints = Checkpoints(config, layout, steps, ["the corpus"], folder, parameters, built.optimizer)
        checkpoints.initialise(checkpoint, sha256)
        outcome.updates_before = contents.updates_made(built.optimizer)
        listeners = [outcome.listen]
        trainer = Trainer(config, steps, built.stages, built.optimizer, built.batches, listeners, None, checkpoints)
        trainer.validate(0)
        checkpoints.save(0, stopped=True)
        trainer.train(lambda: False)
    return outcome


@contextlib.contextmanager
def slow_writer_on_rank_1() -> Iterator[None]:
    """Let rank 1 take longer to write its part than any limit allows."""
    import torch.distributed as dist

    from efficientbench.training.checkpoints.megatron_internals import FileSystemWriterAsync

    write = FileSystemWriterAsync.write_preloaded_data

    def wait_and_write(*arguments: object) -> None:
        time.sleep(5)
        write(*arguments)

    with _writing_by(wait_and_write if dist.get_rank() == 1 else write):
        yield


def dying_writer() -> contextlib.AbstractContextManager[None]:
    """Let the process that writes die by SIGKILL, as where memory runs out; it must be one of its own."""
    parent = os.getpid()

    def die(*arguments: object) -> None:
        assert os.getpid() != parent
        os.kill(os.getpid(), signal.SIGKILL)

    return _writing_by(die)


@contextlib.contextmanager
def two_threads() -> Iterator[None]:
    """Share this rank's computations out among threads, as on any machine of several cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _writing_by(write: Callable[..., None]) -> contextlib.AbstractContextManager[None]:
    from efficientbench.training.checkpoints.megatron_internals import FileSystemWriterAsync

    return mock.patch.object(FileSystemWriterAsync, "write_preloaded_data", staticmethod(write))


def resume(ranks: Callable[[int], Ranks], corpus: Path, checkpoint: Path) -> None:
    """Resume from a checkpoint on two ranks, for two more steps."""
    config = tiny("gqa_1.5B", f"data.cache={corpus.parent}", "parallel.dp=2")
    ranks(2).call(train, config, corpus, 6, checkpoint.parent.parent / "again", checkpoint)


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return every weight of a checkpoint."""
    return dict(Weights(folder))
