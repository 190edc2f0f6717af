"""Measure how long this rank's device waits for other ranks: stamps around every transfer and every wait for one.

A stamp is queued on the stream that computes. So a transfer counts while it blocks that stream, and not while
computation overlaps it, and the host waits for no stamp.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from efficientbench.devices.base import Device

RETURNS_WORK = re.compile(r"-> \S*\bWork\b")
"""The return type, in its docstring, of a process group's method that begins a transfer. Names of these methods differ
between torch's versions."""


class Waits:
    """This rank's waits, for ranks of its own pipeline stage and of other stages."""

    def __init__(self, device: Device, stages: int) -> None:
        """`stages`: number of pipeline stages."""
        self._device, self._stages = device, stages
        self._spans: list[tuple[bool, Any, Any]] = []
        """(whether for other stages, stamp before, stamp after) of every wait since the last `take`."""
        self._underway: dict[int, bool] = {}
        """`id` of a begun transfer → whether other stages take part in it."""
        self._crosses: dict[ProcessGroup, bool] = {}
        """Process group → whether it has ranks of several stages."""

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the waits within the block, in every thread, by replacing the methods of torch's process groups."""
        begins = {
            name: method for name, method in vars(ProcessGroup).items() if RETURNS_WORK.search(str(method.__doc__))
        }
        wait = Work.wait
        for name, method in begins.items():
            setattr(ProcessGroup, name, self._begun_by(method))
        Work.wait = self._waited_by(wait)  # type: ignore[method-assign]
        try:
            yield
        finally:
            Work.wait = wait  # type: ignore[method-assign]
            for name, method in begins.items():
                setattr(ProcessGroup, name, method)

    def take(self) -> tuple[float, float | None]:
        """Return the seconds waited since the last call: for ranks of this stage, and of others (None: one stage).

        The device must have completed all queued work.
        """
        spans, self._spans, self._underway = self._spans, [], {}
        sums = [0.0, 0.0]
        for crosses, begin, end in spans:
            sums[crosses] += self._device.between_s(begin, end)
        return sums[False], sums[True] if self._stages > 1 else None

    def _begun_by(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        # Stamped too, because some backends block the stream when a transfer begins, and it has no later wait.
        def begun(group: ProcessGroup, *arguments: Any, **options: Any) -> Any:
            before, crosses = self._device.stamp(), self._crosses_stages(group)
            work = begin(group, *arguments, **options)
            self._spans.append((crosses, before, self._device.stamp()))
            self._underway[id(work)] = crosses
            return work

        return begun

    def _waited_by(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def waited(work: Work, *arguments: Any, **options: Any) -> Any:
            before = self._device.stamp()
            done = wait(work, *arguments, **options)
            # A transfer from before the last `take` gathers weights, over replicas of one stage.
            self._spans.append((self._underway.get(id(work), False), before, self._device.stamp()))
            return done

        return waited

    def _crosses_stages(self, group: ProcessGroup) -> bool:
        """Return whether the group has ranks of several stages; a stage's ranks have consecutive numbers."""
        if group not in self._crosses:
            per_stage = dist.get_world_size() // self._stages
            self._crosses[group] = len({rank // per_stage for rank in dist.get_process_group_ranks(group)}) > 1
        return self._crosses[group]
