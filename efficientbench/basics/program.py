"""What the command lines have in common: help in the user's language with examples, and mistakes told in one line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from efficientbench.basics.encoding import find_other_bytes
from efficientbench.basics.help_page import translate_help
from efficientbench.basics.language import in_users_language, is_chinese


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


def run_program(
    app: typer.Typer, program: str, examples: Mapping[str, Sequence[str]], extras: Mapping[str, str]
) -> None:
    """Run the command that was typed; exit with 2 where names are not UTF-8 or a package is missing.

    Args:
        app: the program's commands.
        program: the program's name in a shell.
        examples: the examples of each command, see `add_examples`.
        extras: import name of a package → the extras of efficientbench that bring the package.
    """
    if problem := find_other_bytes():
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
    command = typer.main.get_command(app)
    add_examples(command, program, examples)
    if is_chinese():
        translate_help(command)
    try:
        command()
    except ModuleNotFoundError as error:
        extra = extras.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        needed = f"which this command needs: pip install 'efficientbench[{extra}]'"
        print(f"error: {error.name} is not installed, {needed}", file=sys.stderr)
        sys.exit(2)
