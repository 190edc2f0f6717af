"""Pools of ranks that stay up, since an empty start of two costs several seconds.

A pool of N ranks is one world of torch.distributed; each call runs one function on all of its ranks.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

CALL_TIMEOUT_S = 420
SIMULATED_NPU = Path(__file__).resolve().parents[1] / "replicas" / "simulated_npu"


class Ranks:
    """One world of ranks on this machine's CPU, or on the simulated NPU."""

    def __init__(self, size: int, device_type: str = "cpu") -> None:
        context = multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.connections: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (device_type, rank, size, os.path.join(self.folder.name, "store"), theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            self.connections.append(ours)
            self.processes.append(process)

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`function(*arguments)` on every rank; their answers in the order of ranks. Raises the first failure."""
        for connection in self.connections:
            connection.send((function, arguments))
        answers, failures = [], []
        # All of them, also after a failure: an answer that nobody took would be the next call's.
        for rank, connection in enumerate(self.connections):
            if not connection.poll(CALL_TIMEOUT_S):
                failures.append(
                    TimeoutError(f"rank {rank} gave no answer to {function.__name__} in {CALL_TIMEOUT_S} s")
                )
                continue
            failure, answer = connection.recv()
            if failure:
                failures.append(AssertionError(f"rank {rank}:\n{failure}"))
            answers.append(answer)
        if failures:
            raise min(failures, key=lambda failure: isinstance(failure, TimeoutError))
        return answers

    def close(self) -> None:
        """End all ranks."""
        for process, connection in zip(self.processes, self.connections, strict=True):
            process.kill()
            process.join()
            connection.close()
        self.folder.cleanup()


def _reuse_groups() -> None:
    """Give the same ranks the same group in every call, also one that was destroyed: a new one would add threads."""
    import torch.distributed as dist

    make_group = dist.new_group
    groups: dict[tuple[int, ...] | None, object] = {}

    def new_group(ranks: list[int] | None = None, **options: object) -> object:
        key = tuple(ranks) if ranks is not None else None
        if key not in groups:
            groups[key] = make_group(ranks, **options)
        return groups[key]

    dist.new_group, dist.destroy_process_group = new_group, lambda group: None


def _serve(device_type: str, rank: int, size: int, store: str, connection: Connection) -> None:
    import warnings

    from efficientbench.devices.loading import loading

    warnings.filterwarnings("ignore", module="megatron")
    if device_type == "npu":
        sys.path.insert(0, str(SIMULATED_NPU))
    # A rank is killed in the end and removes nothing: what it leaves goes with the pool's folder.
    tempfile.tempdir = os.path.dirname(store)
    with loading():
        import torch
        import torch.distributed as dist

        from efficientbench.devices.registry import all_devices

        torch.set_num_threads(1)
        device = next(device for device in all_devices() if device.type == device_type)
        for name, value in device.environment(tensor_parallel=2).items():
            os.environ.setdefault(name, value)
        device.prepare(rank)
        import efficientbench.worker.build_trainer  # noqa: F401
    dist.init_process_group(
        device.backend, store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=timedelta(seconds=240)
    )
    _reuse_groups()
    # What a rank runs may fork processes of its own, which multiprocessing forbids to daemons.
    multiprocessing.current_process()._config["daemon"] = False
    while True:
        function, arguments = connection.recv()
        try:
            # By value: `send` would share each tensor's memory, and the tests keep answers, each with its descriptors.
            connection.send_bytes(pickle.dumps((None, function(*arguments))))
        except BaseException:
            connection.send((traceback.format_exc(), None))
