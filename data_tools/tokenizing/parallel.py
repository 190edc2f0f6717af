"""Worker processes that end with the process that started them."""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import write_file

CORES = len(os.sched_getaffinity(0))
"""Processor cores that this process may use: the default number of workers."""

Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers:
    """Spawned processes that call a function: `with Workers(count, Kind) as workers: workers.run(function, ...)`.

    The processes start at once and import the module of `Kind`, so that they are ready when `run` is called. With a
    count below 2, this process does the work itself.
    """

    def __init__(self, count: int, kind: type) -> None:
        self._pool = None
        if count > 1:
            self._pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _start_worker)
            for _ in range(count):
                self._pool.submit(_import_module_of, kind)
            # A private name: the public method that ends workers came with Python 3.14.
            self._processes = list(self._pool._processes.values())

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            for process in self._processes:
                process.terminate()
            self._pool.shutdown(cancel_futures=True)

    def run(
        self, function: Callable[[Task], Result], file: Path, tasks: Sequence[Task]
    ) -> Iterator[tuple[Task, Result]]:
        """Yield every task with the function's result, in the order in which they finish.

        The pickled function is written to `file`. Each worker reads it once, and verifies its checksum. Sent with every
        task, a function of some megabytes would fill the pool's queue; in Python 3.10 and 3.11 the pool would then hang
        when a worker dies.

        Raises:
            DataError: a worker process died, or `file` was changed. Errors of the function are raised as they are.
        """
        if self._pool is None:
            for task in tasks:
                yield task, function(task)
            return
        content = pickle.dumps(function)
        write_file(file, content)
        digest = hashlib.sha256(content).digest()
        try:
            call = functools.partial(_call, file, digest)
            futures: dict[Future[Result], Task] = {self._pool.submit(call, task): task for task in tasks}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            self._pool.shutdown()
            raise DataError(
                f"a worker process died ({self._cause_of_death()}); what is finished is kept, and the same command "
                "continues from there"
            ) from None

    def _cause_of_death(self) -> str:
        # The pool itself ends the other workers with SIGTERM.
        codes = [process.exitcode or 0 for process in self._processes]
        code = next((code for code in codes if code not in (0, -signal.SIGTERM)), -signal.SIGTERM)
        if code == -signal.SIGKILL:
            return "SIGKILL, which the system sends when memory runs out"
        try:
            return signal.Signals(-code).name if code < 0 else f"exit code {code}"
        except ValueError:  # most real-time signals have no name
            return f"signal {-code}"


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent handles it
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process already has a core's worth of work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _import_module_of(kind: type) -> None:
    """Do nothing: unpickling the argument has imported its module."""


def _call(file: Path, digest: bytes, task: Any) -> Any:
    return _function(file, digest)(task)


@functools.cache
def _function(file: Path, digest: bytes) -> Callable[[Any], Any]:
    content = file.read_bytes()
    # Unpickling runs the code that a pickle names.
    if hashlib.sha256(content).digest() != digest:
        raise DataError(f"{file} changed since this run wrote it: begin again")
    return pickle.loads(content)  # type: ignore[no-any-return]
