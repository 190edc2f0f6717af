"""Finds tasks by name: the project's own, and third-party ones, whose code is imported only when they are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from efficientbench.basics import plugins
from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.data_tools.chat.task import Task
from efficientbench.data_tools.chat.tasks.arc import Arc, ArcChallenge, ArcEasy
from efficientbench.data_tools.chat.tasks.gsm8k import Gsm8k
from efficientbench.data_tools.chat.tasks.humaneval import HumanEval
from efficientbench.data_tools.chat.tasks.messages import Messages, SmolTalk
from efficientbench.data_tools.chat.tasks.mmlu import Mmlu

ENTRY_POINTS = "efficientbench.tasks"
TASKS: dict[str, type[Task]] = {
    each.name: each for each in (SmolTalk, Arc, ArcEasy, ArcChallenge, Mmlu, Gsm8k, HumanEval, Messages)
}
"""The project's own tasks by name."""
EVALUATED = tuple(name for name, task in TASKS.items() if task.questions is not None)
"""Names of the project's own tasks that have questions for evaluation."""


def find_task(name: str) -> Task:
    """Return the task of this name: the project's, an entry point's, or `package.module:Class`, which is imported.

    Raises:
        DataError: the task does not exist, its module cannot be imported, or its class is no `Task`.
    """
    if name in TASKS:
        return TASKS[name]()
    place = plugins.place_of(name, ENTRY_POINTS)
    if place is None:
        raise DataError(plugins.unknown("task", name, TASKS, ENTRY_POINTS, "package.module:Class"))
    try:
        found: type[Task] = plugins.load(f"task {name}", place, _is_task, f"a class of {Task.__module__}.Task")
    except ConfigError as error:
        raise DataError(str(error)) from None
    try:
        return found()
    except Exception as error:  # third-party code can fail in any way, also where a method is missing
        raise DataError(f"{name} cannot be made: {type(error).__name__}: {error}") from None


def _is_task(found: Any) -> bool:
    # Python 3.10 also takes `Sequence[str]` for an instance of `type`.
    return issubclass(type(found), type) and issubclass(found, Task)


def code_files(name: str) -> list[Path]:
    """Return the source file of a third-party task, whose module was imported before; none for the project's own."""
    place = None if name in TASKS else plugins.place_of(name, ENTRY_POINTS)
    return [] if place is None else plugins.source_files(place)
