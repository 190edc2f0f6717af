"""A fine-tuning's checkpoints: transformers and DeepSpeed write the files, and pretraining's manifest lists them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from efficientbench.finetuning.job import TuningJob
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.training.checkpoints.hashing import File, Report, fingerprint, flush, hashing_threads
from efficientbench.training.checkpoints.manifest import PARTIAL, publish


class TuningCheckpoints:
    """Publishes the checkpoints that the Trainer writes. All ranks must call each method together."""

    def __init__(self, job: TuningJob, rank: int, progress: Callable[[], dict[str, Any]]) -> None:
        """`progress`: returns the state of rank 0's listeners for the next attempt, as plain data."""
        self._job, self._rank, self._progress = job, rank, progress
        self.folder = job.output / "checkpoint"
        self.partial = self.folder / f"{PARTIAL}tuning"
        """The folder in which the Trainer writes; a run that is killed meanwhile leaves no checkpoint."""
        self.hashing_s = 0.0
        """The slowest rank's hashing time, summed over all checkpoints."""
        self.steps: list[int] = []
        """The steps after which this attempt has saved."""

    def publish(self, step: int, by_deepspeed: Iterable[Path], report: Report) -> None:
        """Publish the files below `partial` as the checkpoint after `step` steps.

        Args:
            step: the checkpoint's step, in the name of the Trainer's folder.
            by_deepspeed: the files that DeepSpeed has written on this rank.
            report: told what is under way.

        Raises:
            OSError: the disk is full.
        """
        folder = self.partial / f"checkpoint-{step}"
        self.steps.append(step)
        if not self._rank:
            # DeepSpeed copies its conversion scripts into the folder.
            for program in folder.glob("*.py"):
                program.unlink()
        own = {os.path.relpath(path, folder): path for path in (*by_deepspeed, *self._own(folder))}
        for path in own.values():
            report(f"flushing {path.name}")
            flush(path)
        begin_s = time.monotonic()
        with hashing_threads() as threads:
            hashed = threads.map(lambda path: fingerprint(path, report), own.values())
            files = dict(zip(own, hashed, strict=True))
        everyones = gather((files, time.monotonic() - begin_s), tuple[dict[str, File], float])
        self.hashing_s += max(time_s for _, time_s in everyones)
        if not self._rank:
            content = self._job.manifest(step, "everything", self._progress())
            for of_rank, _ in everyones:
                content.files.update(of_rank)
            publish(folder, self.folder / folder.name, content, self._job.config.checkpoint.keep, report)
            shutil.rmtree(self.partial)
        dist.barrier()

    def _own(self, folder: Path) -> Iterator[Path]:
        """Yield the files that the Trainer has written on this rank: the random state, and on rank 0 all others."""
        for path in folder.iterdir():
            of_rank = path.stem.removeprefix("rng_state_") if path.name.startswith("rng_state_") else "0"
            if path.is_file() and of_rank == str(self._rank):
                yield path
