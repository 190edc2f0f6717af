"""Writing a checkpoint: all ranks together, beside its place and then renamed.

Synchronous: training waits until it lies on the disk. Asynchronous: training goes on after the tensors have been
fetched from the device, and a forked process writes them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue, AsyncRequest
from torch.distributed.checkpoint import CheckpointException

from efficientbench.training import groups
from efficientbench.training.checkpoints import manifest
from efficientbench.training.checkpoints.manifest import Manifest
from efficientbench.training.checkpoints.pieces import Piece
from efficientbench.training.checkpoints.storage import SaveStrategy, Writer
from efficientbench.training.errors import FULL_BYTES

POLL_S = 0.02
OTHERS_EXTRA_S = 5.0
"""How much longer the first rank waits for the others than they may take: who is late shall say so itself."""


class SaveError(RuntimeError):
    """A checkpoint could not be written; those before it are as they were."""


def sharded(parts: Iterable[Piece]) -> dict[str, Any]:
    """Rectangles as dist_checkpointing wants them."""
    return {
        str(number): ShardedTensor(
            key=piece.name,
            data=piece.tensor,
            dtype=piece.tensor.dtype,
            local_shape=tuple(piece.tensor.shape),
            global_shape=piece.whole,
            global_offset=piece.offset,
            # No regular grid: what a rank holds of a parameter may be cut anywhere.
            axis_fragmentations=None,
        )
        for number, piece in enumerate(parts)
    }


class Saver:
    """Writes checkpoints into a run's folder. Every method is called by all ranks together."""

    def __init__(self, run_folder: Path, keep: int, time_limit_s: float) -> None:
        """`keep`: how many of the last ones stay; `time_limit_s`: what a rank may take to write its part."""
        self.run_folder, self.keep, self.time_limit_s = run_folder, keep, time_limit_s
        self.writing: AsyncCallsQueue | None = None
        """The asynchronous save that is under way."""
        self._writer: Writer
        self._folder = run_folder
        self._deadline_s = 0.0

    def save(self, content: Manifest, parts: Iterable[Piece], asynchronous: bool) -> None:
        """Begin a checkpoint, and end it where it is synchronous.

        Args:
            content: of rank 0; the files are still to be named.
            parts: what this rank writes.
            asynchronous: let a forked process write; `finish` ends it.

        Raises:
            SaveError: a rank did not write its part in time, or could not; the message names it.
            OSError: the disk is full.
        """
        self.finish(wait=True)
        folder = self._make_folder(content.step)
        strategy = SaveStrategy()
        with self._told(folder):
            request = dist_checkpointing.save(
                sharded(parts), str(folder), strategy, validate_access_integrity=False, async_sharded_save=True
            )
        self._writer = strategy.writer
        request.add_finalize_fn(lambda: self._publish(folder, content))
        self._deadline_s = time.monotonic() + self.time_limit_s
        if asynchronous:
            self.writing, self._folder = AsyncCallsQueue(), folder
            self.writing.schedule_async_request(request)
            return
        with self._told(folder):
            self._write_now(request, folder)
            for finalize in request.finalize_fns:
                finalize()

    def is_written(self) -> bool:
        """Whether an asynchronous save is under way that all ranks have written."""
        if self.writing is None:
            return False
        process = self.writing.async_calls[0].async_caller.process
        writes = process is not None and process.is_alive()
        if writes and time.monotonic() > self._deadline_s:
            process.kill()
            raise SaveError(self._late([dist.get_rank()], self._folder))
        return not any(groups.gather(writes))

    def finish(self, wait: bool) -> bool:
        """End the asynchronous save that is under way, if all ranks have written it; `wait` until they have.

        Returns whether a checkpoint was completed.
        """
        while not (written := self.is_written()) and wait and self.writing is not None:
            time.sleep(POLL_S)
        if not written or self.writing is None:
            return False
        with self._told(self._folder):
            self.writing.maybe_finalize_async_calls(blocking=True)
        self.writing = None
        return True

    def _make_folder(self, step: int) -> Path:
        """A folder that no other attempt has written into."""
        final = manifest.checkpoint_folder(self.run_folder, step)
        folder = final.with_name(f"{manifest.PARTIAL}{final.name}_{uuid.uuid4().hex[:8]}")
        folder = groups.gather(folder)[0]
        if dist.get_rank() == 0:
            folder.mkdir(parents=True)
        groups.barrier()
        return folder

    def _write_now(self, request: AsyncRequest, folder: Path) -> None:
        arguments = list(request.async_fn_args)
        if request.preload_fn is not None:
            arguments[1] = request.preload_fn()
        if request.async_fn is not None:
            # A thread, because a file system that hangs would hang this one for good.
            writing = threading.Thread(target=request.async_fn, args=arguments, daemon=True)
            writing.start()
            writing.join(self.time_limit_s)
            if writing.is_alive():
                raise SaveError(self._late([dist.get_rank()], folder))
        self._wait_for_all(folder)

    def _wait_for_all(self, folder: Path) -> None:
        """Collectives would wait as well, but could not tell for whom."""
        store = dist.distributed_c10d._get_default_store()
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
    def _told(self, folder: Path) -> Iterator[None]:
        """Turns megatron's errors into the reason of the rank that failed, and clears away what was written."""
        try:
            yield
        except CheckpointException as error:
            failed = [each for each in groups.gather(self._reason()) if each is not None]
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
        # torch's zip writer tells a full disk as an error of its own.
        if number is None and shutil.disk_usage(self.run_folder).free < FULL_BYTES:
            number = errno.ENOSPC
        return dist.get_rank(), number, f"{type(failure).__name__}: {failure}"

    def _clear(self, folder: Path) -> None:
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)

    def _publish(self, folder: Path, content: Manifest) -> None:
        """What makes it a checkpoint: the manifest, and its final name."""
        for written in groups.gather(self._writer.written):
            content.files.update(written)
        if dist.get_rank() == 0:
            for path in folder.rglob("*"):
                name = path.relative_to(folder).as_posix()
                if path.is_file() and name not in content.files:
                    _flush(path)
                    content.files[name] = manifest.fingerprint(path)
            content.write(folder)
            final = manifest.checkpoint_folder(self.run_folder, content.step)
            _flush(folder)
            os.rename(folder, final)
            _flush(final.parent)
            manifest.keep_last(self.run_folder, final, self.keep)
        groups.barrier()


def _as_error(failed: tuple[int, int | None, str], folder: Path) -> Exception:
    rank, number, reason = failed
    if number is not None:
        return OSError(number, f"{os.strerror(number)}, in a checkpoint", str(folder))
    return SaveError(f"rank {rank} could not write its part of {folder}: {reason}")


def _flush(path: Path) -> None:
    """Onto the disk: a file's content, or a folder's names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
