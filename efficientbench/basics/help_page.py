"""Help pages with Chinese titles: the words that typer itself writes around our texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from efficientbench.basics.language import in_chinese

_Formatter: Any = typer.Context.formatter_class


class _ChineseFormatter(_Formatter):  # type: ignore[misc, valid-type]
    """Writes the usage line, the titles, and the notes behind options in Chinese."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, in_chinese("Usage: ") if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        super().write_heading(in_chinese(heading))

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(name, _noted(text)) for name, text in rows], col_max, col_spacing)


class ChineseContext(typer.Context):
    """The context of a command whose help is Chinese."""

    formatter_class = _ChineseFormatter


def _noted(text: str) -> str:
    """Return an option's help with its note in Chinese, like `  [default: 1; required]` at its end."""
    own, bracket, note = text.rpartition("  [")
    return f"{own}{bracket}{in_chinese(note[:-1])}]" if bracket and note.endswith("]") else text


def translate_help(command: Any) -> None:
    """Give a command of click, its parameters and its subcommands their Chinese help."""
    command.help = in_chinese(command.help or "")
    command.context_class = ChineseContext
    # The option --help is made where it is first asked for, and kept.
    for parameter in (*command.params, command.get_help_option(ChineseContext(command))):
        if getattr(parameter, "help", None):
            parameter.help = in_chinese(parameter.help)
    for each in getattr(command, "commands", {}).values():
        translate_help(each)
