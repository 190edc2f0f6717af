"""The commands `efficientbench list` and `efficientbench keys`: the names that other commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from efficientbench.cli.options import MatrixFile


def list_runs(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORD]...", help="part of a run's name or suite, like gqa or moe")
    ] = None,
    matrix: MatrixFile = None,
) -> None:
    """Print the runs of all suites with their parameters, or all runs that have one of the words.

    Examples: efficientbench list; efficientbench list gqa; efficientbench list 7B
    """
    _print_runs(words or [], matrix)


def list_keys(
    part: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="beginning of keys, or part of them, like batch")
    ] = "",
) -> None:
    """Print the keys that key=value sets, with defaults, other names and meanings.

    Examples: efficientbench keys; efficientbench keys parallel; efficientbench keys batch
    """
    _print_keys(part)


def _print_runs(words: list[str], matrix_file: Path | None) -> None:
    from functools import partial

    from rich.console import Console

    from efficientbench.config.errors import ConfigError
    from efficientbench.config.load import resolve
    from efficientbench.config.matrix import MATRIX, load_matrix
    from efficientbench.config.variant import known
    from efficientbench.costs.model import count_parameters
    from efficientbench.planning.plan_table import plain_table

    file = matrix_file or MATRIX
    matrix = load_matrix(file)
    table = plain_table("run", ("parameters", "active", "suite"))
    for run in (*matrix.all_runs, *(matrix.other_runs if words else ())):
        if any(word.lower() in f"{run.name} {run.suite}".lower() for word in words or [""]):
            try:
                counted = known(partial(count_parameters, resolve(run.name, matrix_file=file).model))
            except ConfigError:
                # A variant and a size of a matrix of one's own need not fit: `run` says why.
                counted = None
            figures = (f"{counted.total:,}", f"{counted.active:,}") if counted else ("n/a", "n/a")
            table.add_row(run.name, *figures, run.suite)
    if not table.row_count:
        raise ConfigError(f"no run has {' or '.join(words)} in its name or suite: efficientbench list has all of them")
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(
        f"\nEvery variant ({', '.join(matrix.variants)}) has every size ({', '.join(matrix.sizes)}), like mla_7B."
    )


def _print_keys(part: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.padding import Padding

    from efficientbench.config.errors import ConfigError
    from efficientbench.config.load import settable_keys, unknown_key
    from efficientbench.config.words import ALIASES

    keys = settable_keys()
    chosen = [ALIASES[part]] if part in ALIASES else [key for key in keys if key.startswith(part)]
    chosen = chosen or [key for key in keys if part in key]
    if not chosen:
        raise ConfigError(unknown_key(part, keys))
    console = Console(highlight=False)
    for key in chosen:
        default = keys[key].get_default(call_default_factory=True)
        also = [name for name, ours in ALIASES.items() if ours == key]
        console.print(
            f"[bold]{key}[/bold]",
            "" if keys[key].is_required() else escape(f"= {'unset' if default is None else default}"),
            f"  also {', '.join(also)}" if also else "",
        )
        console.print(Padding(escape(keys[key].description or ""), (0, 0, 0, 4)))
