"""Command lines at the end of help pages, where a user looks for them first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from efficientbench.basics.language import in_users_language


def add_examples(group: Any, program: str, examples: Mapping[str, Sequence[str]]) -> None:
    """Put examples below the help of a group of commands and of each command in it.

    Args:
        group: the click group.
        program: the program's name in a shell.
        examples: command, or "" for the group → command lines after the program's name.

    Raises:
        KeyError: a command has no examples.
    """
    title = in_users_language("Examples:")
    for name, command in {"": group, **group.commands}.items():
        # click keeps the line breaks of a paragraph that begins with \b.
        command.epilog = "\n".join(["\b", title, *(f"  {program} {words}" for words in examples[name])])
