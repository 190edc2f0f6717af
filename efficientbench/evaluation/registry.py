"""The tasks by their names; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from efficientbench.config.errors import ConfigError
from efficientbench.evaluation.task import Options, Summary, Task

if TYPE_CHECKING:
    from efficientbench.generation.opened import Opened

Make = Callable[["Opened", Options], Task]


def _loss(run: Opened, options: Options) -> Task:
    from efficientbench.evaluation.loss import Loss

    return Loss(run, options)


def _core(run: Opened, options: Options) -> Task:
    from efficientbench.evaluation.core.task import Core

    return Core.of(run, options)


TASKS: dict[str, Make] = {"core": _core, "loss": _loss}


def check_names(names: list[str]) -> None:
    """Raise ConfigError for a name that no task has, or for none at all."""
    if not names:
        raise ConfigError(f"--tasks: none is named; there are {', '.join(TASKS)}")
    for name in names:
        if name not in TASKS:
            near = get_close_matches(name, TASKS, 1)
            helps = f"do you mean {near[0]}? " if near else ""
            raise ConfigError(f"--tasks: there is no task {name!r}; {helps}there are {', '.join(TASKS)}")


def combined(summaries: Mapping[str, Summary]) -> dict[str, Summary]:
    """Return what follows from several tasks together, by its name."""
    return {}
