"""Finds tasks by name: the project's own, and third-party ones, whose code is imported only when they are named."""

from __future__ import annotations

import importlib
import re
import sys
from difflib import get_close_matches
from pathlib import Path

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.chat.task import Task
from efficientbench.data_tools.chat.tasks.arc import Arc
from efficientbench.data_tools.chat.tasks.gsm8k import Gsm8k
from efficientbench.data_tools.chat.tasks.humaneval import HumanEval
from efficientbench.data_tools.chat.tasks.messages import Messages
from efficientbench.data_tools.chat.tasks.mmlu import Mmlu
from efficientbench.data_tools.chat.tasks.smoltalk import SmolTalk

OWN: dict[str, type[Task]] = {
    "smoltalk": SmolTalk,
    "mmlu": Mmlu,
    "arc": Arc,
    "gsm8k": Gsm8k,
    "humaneval": HumanEval,
    "messages": Messages,
}
"""The project's own tasks by name."""

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def find_task(name: str) -> Task:
    """Return the task of this name: one of the project's, or `package.module:Class`, whose module is imported.

    Raises:
        DataError: the task does not exist, its module cannot be imported, or its class is no `Task`.
    """
    if name in OWN:
        return OWN[name]()
    if not _DOTTED.fullmatch(name):
        near = get_close_matches(name, OWN, 1)
        hint = f"did you mean {near[0]}?" if near else f"ours are {', '.join(OWN)}"
        raise DataError(f"there is no task called {name[:80]!r}: {hint}; yours is package.module:Class")
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise DataError(f"{module} needs {error.name}, which is not installed") from None
        raise DataError(
            f"there is no module {error.name}: install its package, or name its folder in PYTHONPATH"
        ) from None
    except Exception as error:  # third-party code can fail in any way
        raise DataError(f"{module} cannot be imported: {type(error).__name__}: {error}") from None
    if not isinstance(found, type) or not issubclass(found, Task):
        raise DataError(f"{name} is no class of {Task.__module__}.Task")
    try:
        return found()
    except Exception as error:  # as above, also where a method is missing
        raise DataError(f"{name} cannot be made: {type(error).__name__}: {error}") from None


def code_files(name: str) -> list[Path]:
    """Return the source file of a third-party task, whose module was imported before; none for the project's own."""
    if name in OWN:
        return []
    file = sys.modules[name.partition(":")[0]].__file__
    return [] if file is None else [Path(file)]
