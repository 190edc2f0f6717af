"""Several models that answer at once, each in a thread of its own: a model decodes from one cache at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from efficientbench.devices.registry import find_device
from efficientbench.generation.open_run import Opened

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

T = TypeVar("T")

ASKED_EVERY_S = 0.5
"""Seconds between two checks whether a waiting client is still there."""


@dataclass(frozen=True)
class Worker:
    """A model, and the thread in which it computes."""

    model: GPT
    thread: ThreadPoolExecutor


@dataclass
class Pool:
    """Models, each of which answers one client at a time; further clients wait in order."""

    workers: Sequence[Worker]
    _places: set[object] = field(default_factory=set)
    """The places of clients that no model answers yet."""
    _free: asyncio.Queue[Worker] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        """Begin with all models free."""
        for worker in self.workers:
            self._free.put_nowait(worker)

    @property
    def free(self) -> int:
        """The number of models that answer nobody."""
        return self._free.qsize()

    @property
    def waiting(self) -> int:
        """The number of clients for which no model is free."""
        return max(0, len(self._places) - self.free)

    def place(self) -> object:
        """Return a new client's place among those who wait; it counts until `leave`, or until its turn in `run`."""
        place = object()
        self._places.add(place)
        return place

    def leave(self, place: object) -> None:
        """Give up a place; do nothing if it was given up before."""
        self._places.discard(place)

    async def run(
        self, begin: Callable[[GPT], Generator[T, None, None]], left: Callable[[], Awaitable[bool]], place: object
    ) -> AsyncGenerator[T, None]:
        """Yield what a generator over a free model yields, each step computed in that model's thread.

        The model does not wait for a client that reads slowly, or not at all: it computes all, and then is free.

        Args:
            begin: returns the generator over a model.
            left: returns whether the client has left; called before each step, and while no model is free.
            place: the client's place among those who wait.
        """
        worker = await self._turn(left, place)
        if worker is None:
            return
        items: asyncio.Queue[T | None] = asyncio.Queue()
        computing = asyncio.ensure_future(self._compute(worker, begin(worker.model), items, left))
        try:
            while (item := await items.get()) is not None:
                yield item
            await computing
        finally:
            computing.cancel()
            # So that asyncio does not report its error as never retrieved, where nobody reads to the end.
            await asyncio.gather(computing, return_exceptions=True)

    async def _compute(
        self,
        worker: Worker,
        steps: Generator[T, None, None],
        items: asyncio.Queue[T | None],
        left: Callable[[], Awaitable[bool]],
    ) -> None:
        """Put the items of a generator into a queue, then None, and free the model."""
        loop = asyncio.get_running_loop()
        try:
            while not await left():
                item = await loop.run_in_executor(worker.thread, next, steps, None)
                if item is None:
                    return
                items.put_nowait(item)
        finally:
            items.put_nowait(None)
            # The model's thread closes it after a step that it still computes, and before the model's next answer.
            worker.thread.submit(steps.close)
            self._free.put_nowait(worker)

    async def _turn(self, left: Callable[[], Awaitable[bool]], place: object) -> Worker | None:
        """Return a free model once all earlier clients have theirs; None if the client leaves before."""
        turn, taken = asyncio.ensure_future(self._free.get()), False
        try:
            while not turn.done():
                await asyncio.wait([turn], timeout=ASKED_EVERY_S)
                if not turn.done() and await left():
                    return None
            taken = True
            return turn.result()
        finally:
            self.leave(place)
            # A model that became free in the same moment is the next client's.
            if not taken and not turn.cancel():
                self._free.put_nowait(turn.result())


@contextlib.contextmanager
def pool_of(run: Opened, models: int) -> Iterator[Pool]:
    """Make a pool of `models` models of a run, on this machine's devices in turn; on one device they share weights.

    Raises:
        DeviceError: a device cannot be used.
    """
    from efficientbench.model.gpt import same_model

    device = find_device(run.config.device, trains=False)
    with contextlib.ExitStack() as threads:
        workers = []
        for number in range(models):
            thread = threads.enter_context(ThreadPoolExecutor(1))
            # The current device is a setting of each thread.
            place = thread.submit(device.prepare, number % max(device.count(), 1)).result()
            model = run.model
            if number > 0:
                model = thread.submit(same_model, run.model, run.config, place).result()
            workers.append(Worker(model, thread))
        yield Pool(workers)
