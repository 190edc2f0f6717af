"""The evaluation tasks by name; each is imported only when it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from efficientbench.basics import plugins
from efficientbench.basics.errors import ConfigError
from efficientbench.data_tools.chat.find_task import ENTRY_POINTS, EVALUATED
from efficientbench.evaluation.core.bundle import NAMES as CORE_TASKS
from efficientbench.evaluation.task import Options, Summary, Task

if TYPE_CHECKING:
    from efficientbench.generation.open_run import Opened

Make = Callable[["Opened", Options], Task]


def _loss(run: Opened, options: Options) -> Task:
    from efficientbench.evaluation.loss import Loss

    return Loss(run, options)


def _core(run: Opened, options: Options) -> Task:
    from efficientbench.evaluation.core.task import Core

    return Core.of(run, options)


def _chat(name: str) -> Make:
    def make(run: Opened, options: Options) -> Task:
        from efficientbench.evaluation.chat.chat_tasks import make_chat_task

        return make_chat_task(name, run, options)

    return make


def _hidden(name: str) -> Make:
    def make(run: Opened, options: Options) -> Task:
        from efficientbench.evaluation.long_context.hidden import NEEDLE, PASSKEY, Hidden

        return Hidden(name, run, options, {"needle": NEEDLE, "passkey": PASSKEY}[name])

    return make


def _position_loss(run: Opened, options: Options) -> Task:
    from efficientbench.evaluation.long_context.position_loss import PositionLoss

    return PositionLoss(run, options)


TASKS: dict[str, Make] = {
    "core": _core,
    "loss": _loss,
    **{name: _chat(name) for name in EVALUATED},
    "passkey": _hidden("passkey"),
    "needle": _hidden("needle"),
    "position_loss": _position_loss,
}


def find_task(name: str) -> Make:
    """Return the function that makes the task of a checked name, one of TASKS or a chat task from outside."""
    return TASKS.get(name) or _chat(name)


def check_names(names: list[str]) -> None:
    """Raise ConfigError for an unknown task, or if no task is named."""
    if not names:
        raise ConfigError(f"--tasks: none is named; there are {', '.join(TASKS)}")
    for name in names:
        if name in CORE_TASKS and name not in TASKS:
            raise ConfigError(f"--tasks: {name} is one of the 22 tasks of core, and is scored only there: give core")
        # A task from outside is checked when it is made.
        if name not in TASKS and plugins.place_of(name, ENTRY_POINTS) is None:
            raise ConfigError(f"--tasks: {plugins.unknown('task', name, TASKS, ENTRY_POINTS, 'package.module:Class')}")


def combined(summaries: Mapping[str, Summary]) -> dict[str, Summary]:
    """Return the summaries that combine several tasks, by name."""
    from efficientbench.evaluation.chat.chat_tasks import chat_core

    found = {"chat_core": chat_core(summaries)}
    return {name: summary for name, summary in found.items() if summary is not None}
