"""megatron.core.dist_checkpointing's format on disk, written and read without a manager process or foreign objects.

Megatron's own writer collects results through a manager process, which takes seconds to start, outlives a killed rank,
and hangs a save whose writer dies. Its reader unpickles any object. Strategies, which dist_checkpointing takes as
arguments, replace both.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from efficientbench.basics.errors import CheckpointError
from efficientbench.launchers.processes.failure import STOP_EXIT_CODES
from efficientbench.launchers.processes.worker_process import end_with_parent
from efficientbench.training.checkpoints import megatron_internals
from efficientbench.training.checkpoints.hashing import File, fingerprint
from efficientbench.training.checkpoints.read import MetadataReader


class SaveStrategy(megatron_internals.TorchDistSaveShardedStrategy):
    """Writes one file per rank."""

    writer: Writer
    """The writer of the last save."""

    def __init__(self) -> None:
        super().__init__("torch_dist", 1, thread_count=1)

    def async_save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str) -> megatron_internals.AsyncRequest:
        """Plan this save with all ranks and return the request that writes it."""
        tensors, _, _ = megatron_internals.by_sharded_keys(sharded_state_dict, self.keep_only_main_replica)
        self.writer = Writer(checkpoint_dir)
        planned, *_ = megatron_internals.save_state_dict_async_plan(
            megatron_internals.mcore_to_pyt_state_dict(tensors, False),
            self.writer,
            planner=megatron_internals.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )
        metadata = planned[1]
        if metadata is not None:
            # For a cache of plans that we do not use; it would be the larger part of the file.
            del metadata.all_local_plans
        return megatron_internals.save_callbacks(self, self.writer, planned)


class Writer(megatron_internals.FileSystemWriterAsync):
    """Writes this rank's tensors into one file and takes its fingerprint; also in a forked process."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, thread_count=1)
        self.written: dict[str, File] = {}
        """Name of this rank's file → its size and checksum."""
        self.failure: Exception | None = None
        """The error that kept this rank from writing its part; None without one."""

    def prepare_write_data(self, plan: SavePlan, planner: SavePlanner) -> None:
        """Record the tensors to write; nothing is copied yet."""
        # Bytes would be pickles, which a reader would have to trust.
        assert all(item.type != WriteItemType.BYTE_IO for item in plan.items), "a checkpoint holds tensors alone"
        name = f"{plan.storage_data.prefix}0.distcp"
        tensors = [(item, planner.resolve_data(item).detach()) for item in plan.items]
        self.write_buckets: list[Any] = (
            [(os.path.join(self.checkpoint_dir, name), name, ([], tensors))] if tensors else []
        )
        # A file in memory that a forked process shares.
        self.results = os.fdopen(os.memfd_create("efficientbench_results"), "w+b")

    def get_save_function_and_args(self) -> tuple[Any, Any, list[Any]]:
        """Return (function that writes, function that fetches tensors from their device, arguments of the first)."""
        if not self.write_buckets:
            return None, None, []
        transforms = [self.transforms] if hasattr(self, "transforms") else []
        write = partial(_write, os.getpid(), transforms, self.results)
        # False: not into pinned memory, which torch rounds up and never frees.
        return write, partial(self.preload_tensors, self.write_buckets, False), [0, self.write_buckets, None]

    def retrieve_write_results(self) -> list[WriteResult] | megatron_internals.WRAPPED_EXCEPTION:
        """Return the outcome in the shared file of `_write`, which must have ended."""
        if not self.write_buckets:
            return []
        path, name, _ = self.write_buckets[0]
        self.results.seek(0)
        try:
            outcome, written = pickle.load(self.results)  # of our own process
        except EOFError:
            outcome, written = RuntimeError(f"the process that wrote {path} exited without a result"), None
        self.results.close()
        if isinstance(outcome, Exception):
            self.failure = outcome
            return megatron_internals.wrap_exception(outcome)
        self.written = {name: written}
        return outcome


def _write(parent: int, transforms: list[Any], results: Any, rank: int, buckets: list[Any], unused: None) -> None:
    """Write this rank's tensors, then the outcome into the file `results`; runs in a thread or a forked process.

    `parent` is the rank's process id, and the rank reads `results` afterwards; Megatron passes the other arguments.
    """
    if os.getpid() != parent:
        # Forked: this process must not outlive its rank, and ignores the signals that are sent to the rank.
        end_with_parent()
        if os.getppid() != parent:
            os._exit(1)  # the rank ended before it could be watched
        for number in STOP_EXIT_CODES:
            signal.signal(number, signal.SIG_IGN)
        # A fork has none of the rank's threads: an operation that torch splits among them would hang.
        torch.set_num_threads(1)
    ((path, name, (_, tensors)),) = buckets
    # One dense copy at a time: a view would be saved with all of its storage.
    dense = ((item, tensor.to("cpu", copy=True)) for item, tensor in tensors)
    outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
    unfinished: queue.Queue[int] = queue.Queue()
    unfinished.put(0)
    megatron_internals.FileSystemWriterAsync.write_preloaded_data(
        transforms, 0, (path, name, ([], dense)), outcomes, unfinished, True
    )
    _, outcome = outcomes.get()
    written = None
    if not isinstance(outcome, Exception):
        try:
            written = fingerprint(Path(path))
        except OSError as error:
            outcome = error
    pickle.dump((outcome, written), results)
    results.flush()


class LoadStrategy(megatron_internals.TorchDistLoadShardedStrategy):
    """Reads into existing tensors, and unpickles only the metadata's own classes."""

    def __init__(self, files: Collection[str]) -> None:
        """`files`: paths in the checkpoint's manifest; no other file may be read."""
        super().__init__()
        self.files = files

    def load(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str) -> dict[str, Any]:
        """Fill the tensors in place and return an empty state dict."""
        tensors, _, _ = megatron_internals.by_sharded_keys(sharded_state_dict)
        planner = megatron_internals.MCoreLoadPlanner(
            shapes_validation_sharded_tensors=list(megatron_internals.nested_values(sharded_state_dict))
        )
        reader = MetadataReader(Path(checkpoint_dir), self.files)
        checkpoint.load(
            megatron_internals.mcore_to_pyt_state_dict(tensors, True), storage_reader=reader, planner=planner
        )
        return {}


class CommonStrategy(megatron_internals.TorchCommonLoadStrategy):
    """Reads `common.pt`, which Megatron writes although it holds nothing here."""

    def load_common(self, checkpoint_dir: str) -> dict[str, Any]:
        """Read `common.pt` as plain data.

        Raises:
            CheckpointError: the file holds anything else.
        """
        path = os.path.join(checkpoint_dir, "common.pt")
        try:
            content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise CheckpointError(f"{path}: refused, {str(error).partition(chr(10))[0]}") from None
        return content
