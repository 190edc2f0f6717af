"""Measure how long this rank's device waits for other ranks: stamps around every transfer and every wait for one.

A stamp stands in the queue that computes. So a transfer counts as long as it holds up that queue, and not while
computing goes on beside it, and no host waits for a stamp.
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
"""In the signature of a process group's method that begins a transfer. Their names differ between torch's versions."""


class Waits:
    """The waits of this rank, within its pipeline stage and for other stages."""

    def __init__(self, device: Device, stages: int) -> None:
        """`stages`: of the pipeline."""
        self._device, self._stages = device, stages
        self._spans: list[tuple[bool, Any, Any]] = []
        """(whether for other stages, stamp before, stamp after) of every wait since the last `take`."""
        self._underway: dict[int, bool] = {}
        """Identity of each transfer that has begun → whether other stages take part in it."""
        self._crosses: dict[ProcessGroup, bool] = {}

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the waits of the block, in every thread: torch calls its process groups by these names alone."""
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
        """Return the seconds waited since the last call, within this stage and for others (None: there is one).

        The device must have done all its work.
        """
        spans, self._spans, self._underway = self._spans, [], {}
        sums = [0.0, 0.0]
        for crosses, begin, end in spans:
            sums[crosses] += self._device.between_s(begin, end)
        return sums[False], sums[True] if self._stages > 1 else None

    def _begun_by(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        # Not every transfer has a wait of its own: some backends hold up the queue as they begin.
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
            # One that began before the last `take` is of weights, which replicas of a stage gather.
            self._spans.append((self._underway.get(id(work), False), before, self._device.stamp()))
            return done

        return waited

    def _crosses_stages(self, group: ProcessGroup) -> bool:
        """Return whether the group has ranks of several stages, of which each has as many ranks one after another."""
        if group not in self._crosses:
            per_stage = dist.get_world_size() // self._stages
            self._crosses[group] = len({rank // per_stage for rank in dist.get_process_group_ranks(group)}) > 1
        return self._crosses[group]
