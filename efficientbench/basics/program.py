"""What the command lines have in common: help in the user's language, with names and examples at its end, and mistakes.

Help in Chinese has the titles and notes that typer itself writes; a mistake is told in one line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from efficientbench.basics.encoding import find_other_bytes
from efficientbench.basics.language import in_chinese, in_users_language, is_chinese

_Formatter: Any = typer.Context.formatter_class
_UsageError: Any = typer.BadParameter.__base__


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


def _show_in_chinese(mistake: Any, file: Any = None) -> None:
    """Print the usage of the command that was typed, where its help is, and what was wrong, on stderr."""
    usage = ""
    if mistake.ctx is not None:
        hint = in_chinese(f"Try '{mistake.ctx.command_path} {mistake.ctx.help_option_names[0]}' for help.")
        usage = f"{mistake.ctx.get_usage()}\n{hint}\n\n"
    print(f"{usage}{in_chinese(f'error: {mistake.format_message()}')}", file=file or sys.stderr)


def translate_help(command: Any, parent: Any = None) -> None:
    """Translate the help of a click command, its parameters and its subcommands into Chinese.

    Args:
        command: the click command.
        parent: the context of the group that it belongs to, where it does.
    """
    command.help = in_chinese(command.help or "")
    command.context_class = ChineseContext
    # click creates the help option at the first call of get_help_option, and caches it: in a context like that of a
    # call, whose settings, and those of the group, say how the option is written.
    context = ChineseContext(command, parent, **command.context_settings)
    for parameter in (*command.params, command.get_help_option(context)):
        if getattr(parameter, "help", None):
            parameter.help = in_chinese(parameter.help)
    for each in getattr(command, "commands", {}).values():
        translate_help(each, context)


def command_that_names(title: str, names: Callable[[], Iterable[str]]) -> type[TyperCommand]:
    """Return the class of a command whose help ends with names. They are looked up only for a help page."""

    class NamingCommand(TyperCommand):
        def format_epilog(self, ctx: Any, formatter: Any) -> None:
            formatter.write_paragraph()
            formatter.write_text(f"{in_users_language(title)} {', '.join(names())}")
            super().format_epilog(ctx, formatter)

    return NamingCommand


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


def read_arguments(group: Any, arguments: Sequence[str], is_key: Callable[[str], bool]) -> list[str]:
    """Return a command line with the options of other projects as the command below `group` takes them.

    `--num_files 2` becomes the command's own `--num-files 2`. Where the command takes `key=value`, `--lora_r 8`,
    `--lora-r=8` and `--rl.samples 8` become keys behind all else; a key without a value is true. Other options stay for
    the command to refuse.

    Args:
        group: the click group.
        arguments: the arguments behind the program's name.
        is_key: whether a word, with `_` for `-`, is a key or another name of one.
    """
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    place = next((place for place, word in enumerate(arguments) if word in group.commands), None)
    if place is None:
        return list(arguments)
    parameters = group.commands[arguments[place]].params
    options = {name for each in parameters for name in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
    takes_keys = any(each.param_type_name == "argument" and each.nargs == -1 for each in parameters)
    own, keys, left = list(arguments[: place + 1]), [], list(arguments[place + 1 :])
    while left and left[0] != "--":
        argument = left.pop(0)
        option, sign, text = argument.partition("=")
        word, dashed = option[2:].replace("-", "_"), option.replace("_", "-")
        if option[:2] != "--" or option in options:
            own.append(argument)
        elif dashed in options:
            own.append(dashed + sign + text)
        elif not takes_keys or not is_key(word):
            own.append(argument)
        else:
            value = text if sign else left.pop(0) if left and left[0][:2] != "--" else "true"
            keys.append(f"{word}={value}")
    return [*own, *keys, *left]


def run_program(
    app: typer.Typer,
    program: str,
    examples: Mapping[str, Sequence[str]],
    extras: Mapping[str, str],
    is_key: Callable[[str], bool] = lambda word: False,
) -> None:
    """Run the command that was typed; exit with 2 where names are not UTF-8 or a package is missing.

    Args:
        app: the program's commands.
        program: the program's name in a shell.
        examples: the examples of each command, see `add_examples`.
        extras: import name of a package → the extras of efficientbench that bring the package.
        is_key: whether a word is a key, or another name of one: see `read_arguments`.
    """
    if problem := find_other_bytes():
        print(in_users_language(f"error: {problem}"), file=sys.stderr)
        sys.exit(2)
    command = typer.main.get_command(app)
    add_examples(command, program, examples)
    if is_chinese():
        translate_help(command)
        # The library catches its own mistakes and shows them: what it shows is all that can be translated.
        _UsageError.show = _show_in_chinese
    try:
        command(read_arguments(command, sys.argv[1:], is_key), prog_name=program)
    except ModuleNotFoundError as error:
        extra = extras.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        needed = f"which this command needs: pip install 'efficientbench[{extra}]'"
        print(in_users_language(f"error: {error.name} is not installed, {needed}"), file=sys.stderr)
        sys.exit(2)
