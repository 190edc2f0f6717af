"""Load lm-eval's tasks, and report mistakes as ConfigError, where lm-eval prints a traceback."""

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
    """Finds tasks by name, in lm-eval and in YAML files of a folder."""

    def check(self, names: Sequence[str]) -> None:
        """Raise ConfigError for an unknown task."""
        known = self.all_tasks
        for name in names:
            if name not in known:
                near = get_close_matches(name, known, 1)
                helps = f"do you mean {near[0]}? " if near else ""
                raise ConfigError(
                    f"--lm-eval: lm-eval {version('lm_eval')} has no task {name!r}; {helps}`lm-eval ls tasks`"
                )

    def load(self, task_list: Any) -> TaskDict:
        """Return the named tasks and groups, with their items.

        Raises:
            ConfigError: a task cannot be loaded, is named twice, or would run programs that the model wrote.
        """
        try:
            loaded = super().load(task_list)
        except Exception as error:
            # Downloads, and files and code from outside, may raise anything.
            first_line = next(iter(str(error).splitlines()), "")
            raise ConfigError(f"--lm-eval: a task cannot be loaded: {type(error).__name__}: {first_line}") from None
        unsafe = [name for name, task in loaded["tasks"].items() if getattr(task, "UNSAFE_CODE", False)]
        if unsafe:
            raise ConfigError(
                f"--lm-eval: {unsafe[0]} would run the model's programs without a sandbox and is refused; "
                "--tasks humaneval --allow-code runs programs in one"
            )
        return loaded
