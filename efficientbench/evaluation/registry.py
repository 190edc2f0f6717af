"""The evaluation tasks by name; what makes them is imported only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from efficientbench.basics import plugins
from efficientbench.basics.errors import ConfigError
from efficientbench.data_tools.chat.find_task import ENTRY_POINTS, EVALUATED
from efficientbench.evaluation.core.bundle import NAMES as CORE_TASKS
from efficientbench.evaluation.task import Options, Task

if TYPE_CHECKING:
    from efficientbench.generation.open_run import Opened

TASKS = ("core", "loss", *EVALUATED, "passkey", "needle", "position_loss")
"""Names of the project's tasks."""


def make_task(name: str, run: Opened, options: Options) -> Task:
    """Bind a task to a model. The tasks are imported here, since names are checked without torch.

    Args:
        name: a checked name, one of TASKS or a chat task from outside.
        run: the opened run.
        options: the command's options.
    """
    from efficientbench.evaluation.chat.chat_tasks import make_chat_task
    from efficientbench.evaluation.core.task import Core
    from efficientbench.evaluation.long_context.hidden import NEEDLE, PASSKEY, Hidden
    from efficientbench.evaluation.long_context.position_loss import PositionLoss
    from efficientbench.evaluation.loss import Loss

    if name in (hidden := {"needle": NEEDLE, "passkey": PASSKEY}):
        return Hidden(name, run, options, hidden[name])
    makers: dict[str, Callable[[Opened, Options], Task]] = {
        "core": Core.of,
        "loss": Loss,
        "position_loss": PositionLoss,
    }
    return makers[name](run, options) if name in makers else make_chat_task(name, run, options)


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
