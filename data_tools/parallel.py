"""Tasks shared out to processes that end with the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Generic, TypeVar

from efficientbench.data_tools.errors import DataError

Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers(Generic[Task, Result]):
    """Fresh interpreters that do tasks: `with Workers(Kind, count) as workers: workers.run(arguments, tasks)`.

    Each makes one `Kind(*arguments)`, and calls that with one task after another. They start at once, so that what
    they import is there when `run` is called. A count below 2 stands for this process itself.
    """

    def __init__(self, kind: Callable[..., Callable[[Task], Result]], count: int) -> None:
        self._kind = kind
        self._processes: dict[Connection, SpawnProcess] = {}
        context = multiprocessing.get_context("spawn")
        for _ in range(count if count > 1 else 0):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, kind), daemon=True)
            process.start()
            theirs.close()
            self._processes[ours] = process

    def __enter__(self) -> Workers[Task, Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.terminate()
        for pipe, process in self._processes.items():
            process.join()
            pipe.close()

    def run(self, arguments: tuple[Any, ...], tasks: Sequence[Task]) -> Iterator[tuple[Task, Result]]:
        """Yield every task with what was made of it, as they get done.

        Raises:
            DataError: a worker died. A DataError or an OSError of a task is raised here as it is.
            RuntimeError: a task raised anything else.
        """
        if not self._processes:
            work = self._kind(*arguments)
            for task in tasks:
                yield task, work(task)
            return
        waiting = list(range(len(tasks)))[::-1]
        busy: dict[Connection, int] = {}
        for pipe in self._processes:
            self._send(pipe, arguments)
            self._next(pipe, waiting, tasks, busy)
        while busy:
            for pipe in [pipe for pipe in connection.wait(list(busy)) if isinstance(pipe, Connection)]:
                result = self._receive(pipe)
                number = busy.pop(pipe)
                self._next(pipe, waiting, tasks, busy)
                yield tasks[number], result

    def _next(self, pipe: Connection, waiting: list[int], tasks: Sequence[Task], busy: dict[Connection, int]) -> None:
        if waiting:
            busy[pipe] = waiting.pop()
            self._send(pipe, tasks[busy[pipe]])

    def _send(self, pipe: Connection, message: object) -> None:
        try:
            pipe.send(message)
        except ConnectionError:
            raise self._death(pipe) from None

    def _receive(self, pipe: Connection) -> Result:
        try:
            result, error = pipe.recv()
        except (EOFError, ConnectionError):
            raise self._death(pipe) from None
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def _death(self, pipe: Connection) -> DataError:
        process = self._processes[pipe]
        process.join()
        code = process.exitcode or 0
        cause = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        cause += ", which the system sends when memory runs out" if code == -signal.SIGKILL else ""
        return DataError(
            f"a worker process died ({cause}); what is finished is kept, and the same command goes on from there"
        )


def _serve(pipe: Connection, kind: Callable[..., Callable[[Any], Any]]) -> None:
    """A worker's life: it is told tasks until nobody is there to tell more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent sees to it
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process is a core's worth of work
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work = None
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        if work is None:
            work = kind(*message)
            continue
        result = None
        error: Exception | None = None
        try:
            result = work(message)
        except (DataError, OSError) as told:
            error = told
        except Exception:
            error = RuntimeError(traceback.format_exc())
        pipe.send((result, error))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
