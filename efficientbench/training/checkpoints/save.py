"""Write a checkpoint: all ranks together, into a folder that gets its final name at the end.

A synchronous save returns when everything is on the disk. An asynchronous one returns when the tensors are copied from
the device to the host, and a forked process writes them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from torch.distributed.checkpoint import CheckpointException

from efficientbench.basics.errors import FULL_BYTES
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.training import groups
from efficientbench.training.checkpoints import hashing, manifest
from efficientbench.training.checkpoints.manifest import Manifest
from efficientbench.training.checkpoints.megatron_internals import (
    AsyncCallsQueue,
    AsyncRequest,
    default_store,
    writing_process,
)
from efficientbench.training.checkpoints.shards import Shard
from efficientbench.training.checkpoints.storage import SaveStrategy, Writer

POLL_S = 0.02
OTHERS_EXTRA_S = 5.0
"""The extra time that rank 0 waits for the other ranks, so that a late rank reports itself first."""
ALONE_LIMIT_S = 86_400.0
"""The time in which all weights must be on the disk where there is no other rank to wait for."""


class SaveError(RuntimeError):
    """A checkpoint could not be written; earlier ones are unchanged."""


def sharded_state_dict(shards: Iterable[Shard]) -> dict[str, Any]:
    """Return shards in the form that dist_checkpointing takes."""
    return {
        str(number): ShardedTensor(
            key=shard.name,
            data=shard.tensor,
            dtype=shard.tensor.dtype,
            local_shape=tuple(shard.tensor.shape),
            global_shape=shard.whole,
            global_offset=shard.offset,
            # No regular grid: a rank's part of a parameter may be cut anywhere.
            axis_fragmentations=None,
        )
        for number, shard in enumerate(shards)
    }


class Saver:
    """Writes checkpoints into a run's folder. Every method is called by all ranks together."""

    def __init__(self, run_folder: Path, keep: int, time_limit_s: float, spared: Collection[int] = ()) -> None:
        """Take the limits of later saves.

        Args:
            run_folder: the run's folder, which has `checkpoint/`.
            keep: number of last checkpoints to keep.
            time_limit_s: how long a rank may take to write its part, in seconds.
            spared: steps whose checkpoints to keep beside those.
        """
        self.spared = spared
        self.run_folder, self.keep, self.time_limit_s = run_folder, keep, time_limit_s
        self.writing: AsyncCallsQueue | None = None
        """The asynchronous save that is under way; None without one."""
        self._writer: Writer
        self._folder = run_folder
        self._deadline_s = 0.0

    def save(self, content: Manifest, shards: Iterable[Shard], asynchronous: bool) -> None:
        """Begin a checkpoint; a synchronous one is complete when this returns.

        Args:
            content: the manifest, of which rank 0's is written; its list of files is filled here.
            shards: the shards that this rank writes.
            asynchronous: whether a forked process writes; `is_written` and `finish` then wait for it.

        Raises:
            SaveError: a rank did not write its part in time, or could not; the message names the rank.
            OSError: the disk is full.
        """
        self.finish()
        folder = self._make_folder(content.step)
        strategy = SaveStrategy()
        with self._errors_of(folder):
            request = dist_checkpointing.save(
                sharded_state_dict(shards),
                str(folder),
                strategy,
                validate_access_integrity=False,
                async_sharded_save=True,
            )
        self._writer = strategy.writer
        request.add_finalize_fn(lambda: self._publish(folder, content))
        self._deadline_s = time.monotonic() + self.time_limit_s
        if asynchronous:
            self.writing, self._folder = AsyncCallsQueue(), folder
            self.writing.schedule_async_request(request)
            return
        with self._errors_of(folder):
            self._write_now(request, folder)
            for finalize in request.finalize_fns:
                finalize()

    def is_written(self) -> bool:
        """Return whether all ranks have written the asynchronous save; False without one.

        Raises:
            SaveError: this rank's process is late; it is killed.
        """
        if self.writing is None:
            return False
        process = writing_process(self.writing)
        writes = process is not None and process.is_alive()
        if writes and time.monotonic() > self._deadline_s:
            process.kill()
            raise SaveError(self._late([dist.get_rank()], self._folder))
        return not any(gather(writes, bool))

    def finish(self) -> None:
        """Wait until all ranks have written the asynchronous save, and complete it; do nothing without one."""
        if self.writing is None:
            return
        while not self.is_written():
            time.sleep(POLL_S)
        with self._errors_of(self._folder):
            self.writing.maybe_finalize_async_calls(blocking=True)
        self.writing = None

    def _make_folder(self, step: int) -> Path:
        """Make a folder with a name that no other attempt has used."""
        final = manifest.checkpoint_folder(self.run_folder, step)
        folder = final.with_name(f"{manifest.PARTIAL}{final.name}_{uuid.uuid4().hex[:8]}")
        folder = gather(folder, Path)[0]
        if dist.get_rank() == 0:
            folder.mkdir(parents=True)
        dist.barrier()
        return folder

    def _write_now(self, request: AsyncRequest, folder: Path) -> None:
        if request.async_fn is not None:
            # In a separate thread, because a file system that hangs would hang the caller for good. The thread copies
            # each tensor from the device as it writes it: `preload_fn` would hold all tensors in the host's memory.
            writing = threading.Thread(target=request.async_fn, args=request.async_fn_args, daemon=True)
            writing.start()
            writing.join(self.time_limit_s)
            if writing.is_alive():
                raise SaveError(self._late([dist.get_rank()], folder))
        self._wait_for_all(folder)

    def _wait_for_all(self, folder: Path) -> None:
        """Wait for all ranks through the store; a collective could not name the late rank."""
        store = default_store()
        keys = [f"{folder.name}/{rank}" for rank in range(dist.get_world_size())]
        store.set(keys[dist.get_rank()], "written")
        if dist.get_rank() == 0:
            try:
                store.wait(keys, timedelta(seconds=self.time_limit_s + OTHERS_EXTRA_S))
            except RuntimeError:
                late = [rank for rank, key in enumerate(keys) if not store.check([key])]
                raise SaveError(self._late(late, folder)) from None
            for key in keys:
                store.delete_key(key)

    def _late(self, ranks: list[int], folder: Path) -> str:
        which = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
        return (
            f"{which} did not write a part of {folder} in {self.time_limit_s:g} s (checkpoint.time_limit_s); "
            "is its file system slow, or does it hang?"
        )

    @contextlib.contextmanager
    def _errors_of(self, folder: Path) -> Iterator[None]:
        """Turn Megatron's errors into the reason of the rank that failed, and remove the partial folder."""
        try:
            yield
        except CheckpointException as error:
            failed = [each for each in gather(self._reason(), tuple[int, int | None, str] | None) if each is not None]
            self._clear(folder)
            raise _as_error(failed[0] if failed else (0, None, str(error)), folder) from None
        except OSError as error:
            self._clear(folder)
            raise OSError(error.errno, f"{error.strerror}, in a checkpoint", str(folder)) from None

    def _reason(self) -> tuple[int, int | None, str] | None:
        failure = self._writer.failure
        if failure is None:
            return None
        number = failure.errno if isinstance(failure, OSError) else None
        # torch's zip writer reports a full disk as an error of its own.
        if number is None and shutil.disk_usage(self.run_folder).free < FULL_BYTES:
            number = errno.ENOSPC
        return dist.get_rank(), number, f"{type(failure).__name__}: {failure}"

    def _clear(self, folder: Path) -> None:
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)

    def _publish(self, folder: Path, content: Manifest) -> None:
        """Make the folder a checkpoint: gather the files' checksums, write the manifest, and rename the folder."""
        for written in gather(self._writer.written, dict[str, hashing.File]):
            content.files.update(written)
        if dist.get_rank() == 0:
            final = manifest.checkpoint_folder(self.run_folder, content.step)
            manifest.publish(folder, final, content, self.keep, spared=self.spared)
        dist.barrier()


def _as_error(failed: tuple[int, int | None, str], folder: Path) -> Exception:
    rank, number, reason = failed
    if number is not None:
        return OSError(number, f"{os.strerror(number)}, in a checkpoint", str(folder))
    return SaveError(f"rank {rank} could not write its part of {folder}: {reason}")


def write_weights(run_folder: Path, content: Manifest, weights: Mapping[str, torch.Tensor], backend: str) -> None:
    """Write a checkpoint of full weights in this process, without a model, as all ranks of a run would.

    Args:
        run_folder: the folder in which to make `checkpoint/step_<number>/`.
        content: the manifest; its list of files is filled here.
        weights: full tensors on the host by global name, a separate name for each expert.
        backend: the host's backend of torch.distributed.

    Raises:
        SaveError, OSError: see `Saver.save`.
    """
    shards = [
        Shard(f"model.{name}", tuple(weight.shape), (0,) * weight.dim(), weight) for name, weight in weights.items()
    ]
    with groups.one_rank(backend):
        Saver(run_folder, 1, ALONE_LIMIT_S).save(content, shards, asynchronous=False)
