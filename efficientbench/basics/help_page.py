"""Help pages: Chinese ones, with the titles and notes that typer itself writes, and names at their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from efficientbench.basics.language import in_chinese, in_users_language

_Formatter: Any = typer.Context.formatter_class


class _ChineseFormatter(_Formatter):  # type: ignore[misc, valid-type]
    """A help formatter that writes the usage line, the titles and the options' notes in Chinese."""

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
    """Return an option's help with the note at its end, like `  [default: 1; required]`, in Chinese."""
    own, bracket, note = text.rpartition("  [")
    return f"{own}{bracket}{in_chinese(note[:-1])}]" if bracket and note.endswith("]") else text


def translate_help(command: Any) -> None:
    """Translate the help of a click command, its parameters and its subcommands into Chinese."""
    command.help = in_chinese(command.help or "")
    command.context_class = ChineseContext
    # click creates the option --help at the first call of get_help_option, and caches it.
    for parameter in (*command.params, command.get_help_option(ChineseContext(command))):
        if getattr(parameter, "help", None):
            parameter.help = in_chinese(parameter.help)
    for each in getattr(command, "commands", {}).values():
        translate_help(each)


def command_that_names(title: str, names: Callable[[], Iterable[str]]) -> type[TyperCommand]:
    """Return the class of a command whose help ends with names. They are looked up only for a help page."""

    class NamingCommand(TyperCommand):
        def format_epilog(self, ctx: Any, formatter: Any) -> None:
            formatter.write_paragraph()
            formatter.write_text(f"{in_users_language(title)} {', '.join(names())}")
            super().format_epilog(ctx, formatter)

    return NamingCommand
