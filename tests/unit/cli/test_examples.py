"""The examples of help pages: each command has some, its parser takes them, and what they configure is valid."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping
from typing import Any

import pytest
import typer
from support.command_line import efficientbench

from efficientbench.basics.program import add_examples
from efficientbench.cli.app import app
from efficientbench.cli.examples import EXAMPLES
from efficientbench.cli.options import MODES, overrides_of
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.data_tools.cli import EXAMPLES as DATA_EXAMPLES
from efficientbench.data_tools.cli import app as data_app
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.sweep.combinations import parse_axes
from efficientbench.sweep.selection import select


@functools.cache
def group_of(application: typer.Typer) -> Any:
    return typer.main.get_command(application)


def parsed(application: typer.Typer, line: str) -> tuple[str, dict[str, Any]]:
    """Return a line's command and its parameters as its own parser reads them; run nothing."""
    name, *words = shlex.split(line)
    commands = group_of(application).commands
    return name, {} if words == ["--help"] else commands[name].make_context(name, words).params


@pytest.mark.parametrize(("application", "examples"), [(app, EXAMPLES), (data_app, DATA_EXAMPLES)])
def test_each_command_has_examples_that_its_parser_accepts(
    application: typer.Typer, examples: Mapping[str, tuple[str, ...]]
) -> None:
    assert list(examples)[0] == ""
    assert set(examples) - {""} == set(group_of(application).commands)
    for name, lines in examples.items():
        assert lines
        for line in lines:
            assert parsed(application, line)[0] == (name or line.split()[0])
            assert len(line) < 100


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_each_example_gives_a_valid_configuration(line: str) -> None:
    command, given = parsed(app, line)
    words = [word for word in given.get("arguments") or [] if word not in MODES]
    if command == "finetune":
        resolve_tuning(given["name"], given["smoke"], words)
    elif command in ("run", "plan", "profile", "launch") and given:
        resolve(given["name"], given["smoke"], overrides_of(words, None, None))
    elif command == "sweep":
        assert select(load_matrix(), given["only"].split(","), [each for each in [given["sizes"]] if each])
        parse_axes(given["axes"] or [])


def test_examples_end_the_help_in_the_users_language() -> None:
    for locale, title in (("C.UTF-8", "Examples:"), ("zh_CN.UTF-8", "示例：")):
        shown = efficientbench("plot", "--help", LC_ALL=locale)
        assert (shown.returncode, shown.stderr) == (0, "")
        lines = shown.stdout.rstrip().splitlines()
        assert [line.strip() for line in lines[-2:]] == [title, f"efficientbench {EXAMPLES['plot'][0]}"]


def test_a_command_without_examples_is_refused() -> None:
    group: Any = typer.main.get_command(app)
    with pytest.raises(KeyError, match="plot"):
        add_examples(group, "efficientbench", {name: each for name, each in EXAMPLES.items() if name != "plot"})
