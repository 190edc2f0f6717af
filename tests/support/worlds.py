"""Runs that open the same data at once, each a world of gloo ranks, forked from one process that has megatron loaded.

`index_builds` is for a process that nothing has forked from yet: a fork after torch has started threads may hang.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import numpy as np

from efficientbench.config.schema import RunConfig

TIMEOUT_S = 300


@dataclass(frozen=True)
class Opened:
    """What one rank found: the tokens of the first samples, and how many index files it wrote."""

    samples: np.ndarray
    written: int


def load_megatron() -> None:
    """What every rank does before megatron is imported, done once for those that are forked."""
    from efficientbench.devices.loading import loading

    with loading():
        import torch

        from efficientbench.devices.cpu import CPU

        torch.set_num_threads(1)
        CPU().prepare(0)
        import efficientbench.training.data.batches  # noqa: F401


def index_builds(
    config: RunConfig, prefixes: list[Path], runs: int, ranks: int, die_at: int | None = None
) -> list[Opened | None]:
    """Start `runs` worlds of `ranks` at once on one cache; what each rank opened, None for one that was killed.

    die_at: the first rank of the first run dies by SIGKILL in the middle of writing its index file of that number,
        from 1, and its other ranks with it.
    """
    context = multiprocessing.get_context("fork")
    started = []
    with tempfile.TemporaryDirectory() as stores:
        for run in range(runs):
            for rank in range(ranks):
                ours, theirs = context.Pipe()
                dies = die_at if run == 0 else None
                arguments = (config, prefixes, Path(stores) / str(run), rank, ranks, dies, theirs)
                process = context.Process(target=_open, args=arguments)
                process.start()
                theirs.close()
                started.append((run, process, ours))
        answers = []
        for run, process, connection in started:
            if run == 0 and die_at is not None:
                started[0][1].join(TIMEOUT_S)
                process.kill()  # a launcher ends the ranks that are left
                answers.append(None)
            else:
                assert connection.poll(TIMEOUT_S), f"run {run} opened nothing in {TIMEOUT_S} s"
                answers.append(connection.recv())
            process.join()
    return answers


def _open(
    config: RunConfig,
    prefixes: list[Path],
    store: Path,
    rank: int,
    ranks: int,
    die_at: int | None,
    connection: Connection,
) -> None:
    import torch
    import torch.distributed as dist

    from efficientbench.training import groups
    from efficientbench.training.data.batches import Batches
    from efficientbench.training.data.sample_index import Vocabulary

    written, save = 0, np.save

    def save_and_count(file: IO[bytes], *arguments: object, **options: object) -> None:
        nonlocal written
        written += 1
        save(file, *arguments, **options)
        if written == die_at:
            file.truncate(file.tell() // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    np.save = save_and_count
    dist.init_process_group("gloo", store=dist.FileStore(str(store), ranks), rank=rank, world_size=ranks)
    with groups.model_parallel(config.parallel, seed=0):
        batches = Batches(config, 4, prefixes, Vocabulary(131, 0, {"name": "tiny"}), torch.device("cpu"))
        samples = [dataset[i]["tokens"].numpy() for dataset in (batches.training, batches.validation) for i in range(8)]
        connection.send(Opened(np.stack(samples), written))
        dist.barrier()
