"""The tasks of lm-eval, with errors for people; lm-eval's own are tracebacks."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from lm_eval.tasks import TaskManager

from efficientbench.basics.errors import ConfigError

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict


class Tasks(TaskManager):
    """Finds tasks by their names: those of lm-eval, and those of YAML files in a folder."""

    def check(self, names: Sequence[str]) -> None:
        """Raise ConfigError for a name that no task has."""
        known = self.all_tasks
        for name in names:
            if name not in known:
                near = get_close_matches(name, known, 1)
                helps = f"do you mean {near[0]}? " if near else ""
                raise ConfigError(
                    f"--lm-eval: lm-eval {version('lm_eval')} has no task {name!r}; {helps}`lm-eval ls tasks`"
                )

    def load(self, task_list: Any) -> TaskDict:
        """Return the tasks and groups of these names, with their items.

        Raises:
            ConfigError: one cannot be loaded, two names hold the same one, or one runs programs that the model writes.
        """
        try:
            loaded = super().load(task_list)
        except Exception as error:
            # Files and code of others, and downloads, fail in any way.
            first_line = next(iter(str(error).splitlines()), "")
            raise ConfigError(f"--lm-eval: a task cannot be loaded: {type(error).__name__}: {first_line}") from None
        unsafe = [name for name, task in loaded["tasks"].items() if getattr(task, "UNSAFE_CODE", False)]
        if unsafe:
            raise ConfigError(
                f"--lm-eval: {unsafe[0]} would run programs that the model writes, in no sandbox, and is refused; "
                "--tasks humaneval --allow-code has one"
            )
        return loaded
