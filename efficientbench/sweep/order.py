"""The order of a sweep's repeats: configurations take turns, so that a drift of the machine is no difference of models.

Each round runs every configuration once, in random order, and every second round repeats the one before it backwards
(A C B B C A …): a steady drift then slows all configurations of such a pair of rounds by the same. The seed and the
order lie in `sweep/order.json` of the suite's folder.
"""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Sequence
from pathlib import Path

from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.config.errors import ConfigError
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.files import write_whole
from efficientbench.sweep.tasks import Task

ORDER = "order.json"


def take_turns(tasks: Sequence[Task], folder: Path) -> list[Task]:
    """Return the tasks of repeated configurations in turns, and write that order and its seed into the sweep's folder.

    The seed is that of an earlier call of the sweep, where there was one.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = folder / ORDER
    try:
        seed = int(parse_json(read_whole(path))["seed"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        seed = secrets.randbits(32)
    ordered = in_turns(tasks, seed)
    content = {"seed": seed, "order": [task.id for task in ordered]}
    try:
        write_whole(path, json.dumps(content, indent=2) + "\n")
    except MetricsError as error:
        raise ConfigError(str(error)) from None
    return ordered


def in_turns(tasks: Sequence[Task], seed: int) -> list[Task]:
    """Return the tasks, as many of each configuration, in rounds: the random order that the seed makes."""
    repeats: dict[Path, list[Task]] = {}
    for task in tasks:
        repeats.setdefault(task.folder.path.parent, []).append(task)
    chance = random.Random(seed)
    places = list(range(len(repeats)))
    ordered: list[Task] = []
    for number, each in enumerate(zip(*repeats.values(), strict=True)):
        places.reverse() if number % 2 else chance.shuffle(places)
        ordered += [each[place] for place in places]
    return ordered
