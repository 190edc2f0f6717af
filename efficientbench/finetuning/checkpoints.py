"""The checkpoints of a fine-tuning: transformers and DeepSpeed write files, and pretraining's manifest lists them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from efficientbench.finetuning.job import TuningJob
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.training.checkpoints.manifest import PARTIAL, File, fingerprint, flush, publish


@dataclass(frozen=True)
class _Hashed:
    """What one rank has hashed of a checkpoint."""

    files: dict[str, File]
    time_s: float


class TuningCheckpoints:
    """Makes checkpoints of what the Trainer has written. Every method is called by all ranks together."""

    def __init__(self, job: TuningJob, rank: int) -> None:
        self._job, self._rank = job, rank
        self.folder = job.output / "checkpoint"
        self.partial = self.folder / f"{PARTIAL}tuning"
        """Where the Trainer writes; a run that ends there leaves no checkpoint."""
        self.hashing_s = 0.0
        """Time in which the slowest rank has hashed its files, of all checkpoints."""

    def publish(self, step: int, by_deepspeed: Iterable[Path]) -> None:
        """Make what lies below `partial` the checkpoint after `step` steps.

        Args:
            step: in the name that the Trainer has given.
            by_deepspeed: files that DeepSpeed has written on this rank.

        Raises:
            OSError: the disk is full.
        """
        folder = self.partial / f"checkpoint-{step}"
        if not self._rank:
            # DeepSpeed copies programs there, for people to run.
            for program in folder.glob("*.py"):
                program.unlink()
        own = {os.path.relpath(path, folder): path for path in (*by_deepspeed, *self._own(folder))}
        for path in own.values():
            flush(path)
        begin_s = time.monotonic()
        files = {name: fingerprint(path) for name, path in own.items()}
        mine = _Hashed(files, time.monotonic() - begin_s)
        everyones = gather(mine, _Hashed)
        self.hashing_s += max(each.time_s for each in everyones)
        if not self._rank:
            content = self._job.manifest(step, "everything")
            for each in everyones:
                content.files.update(each.files)
            publish(folder, self.folder / folder.name, content, self._job.config.checkpoint.keep)
            shutil.rmtree(self.partial)
        dist.barrier()

    def _own(self, folder: Path) -> Iterator[Path]:
        """Yield what the Trainer has written on this rank: its random state, and on the first rank all else."""
        for path in folder.iterdir():
            of_rank = path.stem.removeprefix("rng_state_") if path.name.startswith("rng_state_") else "0"
            if path.is_file() and of_rank == str(self._rank):
                yield path
