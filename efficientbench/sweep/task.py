"""What a sweep can queue: runs of any kind, each with its own folder and command line, and their order."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.basics.grouped import grouped
from efficientbench.config.quantization import FULL, Quantization
from efficientbench.launchers.processes.failure import Failure
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.record import RunRecord
from efficientbench.running.kind import Config, with_seeds
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.resume import settings
from efficientbench.sweep.estimate import Estimate
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.selection import Request


class PlannedFigures(NamedTuple):
    """The figures of a run before it starts; None if they are unknown."""

    ranks: int
    steps: int | None
    tokens: int | None
    micro_batch_size: int
    node_memory_bytes: float | None
    """Peak memory of all ranks of a node together."""


SHOWN = 3
"""Runs of one text that are named."""


@dataclass(frozen=True)
class Task(ABC):
    """One run of a sweep."""

    unhashed: ClassVar[tuple[str, ...]]
    """Keys, or prefixes of keys, that do not change what the run computes."""
    id: str
    """The name of the run's folder, with the seed if the run is one of several repeats. It is a valid file name."""
    arguments: tuple[str, ...]
    """The command line that starts the run, after `efficientbench`."""
    folder: OutputFolder
    config: Any = None
    """The configuration as the user wrote it; None if it is refused for another reason than memory."""
    refused: Failure | None = field(default=None, kw_only=True)
    """Why the run cannot run here; None if it can."""
    slots: int = field(default=1, kw_only=True)
    asked: int | None = field(default=None, kw_only=True)
    """The micro-batch that the user wrote, if a smaller one replaces it; else None."""
    generates: bool = field(default=False, kw_only=True)
    """Whether generation with the trained model is measured too."""
    widths: tuple[Quantization, ...] = field(default=(), kw_only=True)
    """The widths of weights with which it is measured, beside that of the training; all have the same keys."""
    after: tuple[str, ...] = field(default=(), kw_only=True)
    """Ids of the runs that must be done before this one starts."""

    @property
    def configuration(self) -> str:
        """Hash of the settings, equal for tasks that compute the same."""
        content: dict[str, Any] = {"arguments": self.arguments}
        if self.config is not None:
            content = settings(self.config.model_dump(mode="json"), self.unhashed)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def ranks(self) -> int:
        """The number of ranks on all nodes."""
        planned = self.planned()
        return 1 if planned is None else planned.ranks

    @cached_property
    def steps(self) -> int | None:
        """Steps of the run; None if they are unknown before it starts."""
        planned = self.planned()
        return None if planned is None else planned.steps

    @property
    def stop_grace_s(self) -> float:
        """Seconds that the run's ranks have to save after a signal."""
        assert self.config is not None, "a refused run does not start"
        return self.config.faults.stop_grace_s

    @abstractmethod
    def planned(self) -> PlannedFigures | None:
        """Return the run's figures before it starts; None if it is refused for another reason than memory."""

    @abstractmethod
    def estimate(self, machine: Machine, records: Sequence[RunRecord], cores: float) -> Estimate | None:
        """Return the run's estimated time and energy; None without a plan. Arguments: see `estimate.estimate`."""

    @abstractmethod
    def is_trained(self, device_name: str, smaller_too: bool) -> bool:
        """Return whether the run's folder has the complete record of its configuration on devices of this name.

        `smaller_too`: whether a record with a micro-batch reduced for lack of memory counts.
        """

    def text(self) -> str | None:
        """Return what the run will read and whether that makes it speed only, or what is missing; None: not known."""
        return None

    def smaller(self, machine: Machine) -> Task | None:
        """Return the task with a smaller micro-batch at the same global batch; None without one."""
        return None

    @property
    def generation_arguments(self) -> tuple[str, ...]:
        """The command line that measures generation, after `efficientbench`."""
        if not self.widths:
            return "generate", str(self.folder.path), "--measure"
        widths = ",".join((FULL, *(each.weights for each in self.widths)))
        return "generate", str(self.folder.path), "--measure", "--weights", widths, *self.widths[0].words


def repeats(
    request: Request, config: Config, arguments: tuple[str, ...], seeds: Sequence[str]
) -> list[tuple[Config, str, tuple[str, ...], OutputFolder]]:
    """Return configuration, id, arguments and folder of a combination's run, or of each of its repeats.

    Args:
        request: the sweep's request.
        config: the combination's configuration.
        arguments: the command line of the combination.
        seeds: the keys in which repeats differ.
    """
    if request.repeat is None:
        return [(config, config.name, arguments, OutputFolder.of(config))]
    found = []
    for index in range(request.repeat):
        each = with_seeds(config, seeds, index)
        own = (*arguments, "--repeat", "1", *(f"{key}={attrgetter(key)(each)}" for key in seeds))
        found.append((each, f"{config.name}__seed_{each.training.seed}", own, OutputFolder.of_repeat(each)))
    return found


def check_some_can_run(tasks: Sequence[Task], shows_too_large: bool) -> None:
    """Raise ConfigError if all runs are refused; `shows_too_large`: runs that do not fit are shown, not refused."""
    refused = [task.refused for task in tasks if task.refused]
    shown = shows_too_large and any(each.kind == "out_of_memory" for each in refused)
    if len(refused) == len(tasks) and not shown:
        runs = grouped((task.refused, task.id) for task in tasks if task.refused)
        # A lack of memory names its run itself.
        named = {why for why in runs if len(runs) > 1 and why.kind != "out_of_memory"}
        raise ConfigError([(f"{some_of(ids)}: " if why in named else "") + why.reason for why, ids in runs.items()])


def some_of(ids: Sequence[str]) -> str:
    """Return the first of some runs, and how many others there are."""
    more = len(ids) - SHOWN
    return ", ".join(ids[:SHOWN]) + (f" and {number_of(more, 'other run')}" if more > 0 else "")


# The order of a sweep's repeats: configurations take turns, so that a drift of the machine does not look like a
# difference of models.
#
# Each round runs every configuration once, in random order, and every second round repeats the one before it
# backwards (A C B B C A …): a steady drift then slows all configurations of such a pair of rounds equally. The seed
# and the order are in `sweep/order.json` of the suite's folder.


ORDER = "order.json"


def _repeated(task: Task) -> Hashable:
    return task.folder.path.parent


def take_turns(tasks: Sequence[Task], folder: Path, of: Callable[[Task], Hashable] = _repeated) -> list[Task]:
    """Return the tasks of repeated configurations in turns, and write that order and its seed into the sweep's folder.

    The seed is an earlier call's, if the sweep was called before. `of`: see `in_turns`.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = folder / ORDER
    try:
        seed = int(parse_json(read_whole(path))["seed"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        seed = secrets.randbits(32)
    ordered = in_turns(tasks, seed, of)
    content = {"seed": seed, "order": [task.id for task in ordered]}
    try:
        write_whole(path, json.dumps(content, indent=2) + "\n")
    except MetricsError as error:
        raise ConfigError(str(error)) from None
    return ordered


def in_turns(tasks: Sequence[Task], seed: int, of: Callable[[Task], Hashable] = _repeated) -> list[Task]:
    """Return the tasks in rounds, in the random order of `seed`: in each the next task of every configuration.

    A configuration with fewer tasks is in the first rounds. `of`: returns what a task's turn belongs to; by default the
    configuration that it repeats.
    """
    repeats = grouped((of(task), task) for task in tasks)
    chance = random.Random(seed)
    places = list(range(len(repeats)))
    ordered: list[Task] = []
    for number, each in enumerate(itertools.zip_longest(*repeats.values())):
        places.reverse() if number % 2 else chance.shuffle(places)
        ordered += [task for place in places if (task := each[place]) is not None]
    return ordered
