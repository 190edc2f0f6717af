"""The commands `efficientbench list` and `efficientbench keys`: the names that other commands take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from efficientbench.cli.options import MatrixFile, names

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from rich.console import Console
    from rich.table import Table


def list_runs(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...", help="part of a run's name or suite, like gqa or moe; or finetuning, tasks, rewards"
        ),
    ] = None,
    matrix: MatrixFile = None,
) -> None:
    """Print the runs of all suites with their parameters, or all runs that have one of the words."""
    from functools import partial

    from rich.console import Console

    from efficientbench.architecture.variant import known
    from efficientbench.basics.errors import ConfigError
    from efficientbench.config.load import resolve
    from efficientbench.config.matrix import MATRIX, by_name, load_matrix
    from efficientbench.costs.model import count_parameters
    from efficientbench.planning.matching import matched
    from efficientbench.planning.table import plain_table, print_whole

    wanted, file = names(",".join(words or ())), matrix or MATRIX
    declared = load_matrix(file)
    table = plain_table("run", ("parameters", "active", "suite"))
    runs = (*declared.all_runs, *(declared.other_runs if wanted else ()))
    for run in by_name(run for run in runs if _has(wanted or [""], f"{run.name} {run.suite}")).values():
        try:
            config, _ = matched(resolve(run.name, matrix_file=file), (), file)
            counted = known(partial(count_parameters, config.model))
        except ConfigError:
            # A variant and a size of a matrix of one's own need not fit: `run` says why.
            counted = None
        figures = (f"{counted.total:,}", f"{counted.active:,}") if counted else ("n/a", "n/a")
        table.add_row(run.name, *figures, run.suite)
    others = [each for each in (_tunings(wanted), _tasks(wanted), _plugins(wanted)) if each.row_count]
    if not table.row_count and not others:
        raise ConfigError(f"no run has {' or '.join(wanted)} in its name or suite: efficientbench list has all of them")
    console = Console(highlight=False, soft_wrap=True)
    if table.row_count:
        print_whole(table, console)
        variants, sizes = ", ".join(declared.variants), ", ".join(declared.sizes)
        console.print(f"\nEvery variant ({variants}) has every size ({sizes}), like mla_7B.")
    for place, each in enumerate(others):
        if table.row_count or place:
            console.print()
        print_whole(each, console)
    if not wanted:
        console.print("Fine-tunings: efficientbench list finetuning.")
        console.print("Chat tasks and rewards: efficientbench list tasks rewards.")


def list_keys(
    part: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="beginning of keys, or part of them, like batch")
    ] = "",
) -> None:
    """Print the keys that key=value sets, with defaults, other names and meanings."""
    from rich.console import Console

    from efficientbench.basics.errors import ConfigError
    from efficientbench.config.load import settable_keys, unknown_key
    from efficientbench.config.spellings import ALIASES
    from efficientbench.finetuning.load import WORDS
    from efficientbench.finetuning.load import settable_keys as keys_of_tunings

    keys, of_tunings = settable_keys(), keys_of_tunings()
    chosen = _chosen(part, keys, ALIASES)
    further = _chosen(part, of_tunings, WORDS) if part else []
    if not chosen and not further:
        raise ConfigError(unknown_key(part, {**of_tunings, **keys}))
    console = Console(highlight=False)
    for key in chosen:
        _print_key(key, keys[key], ALIASES, console)
    if chosen and further:
        console.print()
    if further:
        console.print("of fine-tunings (efficientbench finetune):")
    for key in further:
        _print_key(key, of_tunings[key], WORDS, console)
    if not part:
        console.print("\nFine-tunings have keys of their own, like adapter.r: efficientbench keys adapter")


def _has(words: Sequence[str], text: str) -> bool:
    return any(word.lower() in text.lower() for word in words)


def _tunings(words: Sequence[str]) -> Table:
    """Return the fine-tunings that have one of the words, with the models that they begin with."""
    from efficientbench.config.tunings import named_tunings
    from efficientbench.finetuning.load import SUITE, resolve_tuning
    from efficientbench.planning.table import plain_table

    table = plain_table("fine-tuning", ("base model",), left=1)
    for name in named_tunings():
        if _has(words, f"{name} {SUITE}"):
            table.add_row(name, resolve_tuning(name).model)
    return table


def _tasks(words: Sequence[str]) -> Table:
    """Return the project's chat tasks and rewards that have one of the words."""
    from efficientbench.data_tools.chat.find_task import TASKS
    from efficientbench.planning.table import plain_table
    from efficientbench.training.reinforcement.rewards import OWN

    table = plain_table("name", ("kind", "what it is"), left=2)
    rows = [(name, "task", task.about) for name, task in TASKS.items()]
    for row in (*rows, *((name, "reward", f"that of the task {name}") for name in OWN)):
        if _has(words, f"{row[0]} {row[1]}s"):
            table.add_row(*row)
    return table


def _plugins(words: Sequence[str]) -> Table:
    """Return what other packages have installed for the keys below and has one of the words, without importing it."""
    from efficientbench.architecture.registry import ENTRY_POINTS as VARIANTS
    from efficientbench.basics.plugins import installed
    from efficientbench.data_tools.chat.find_task import ENTRY_POINTS as TASKS
    from efficientbench.finetuning.methods import ENTRY_POINTS as METHODS
    from efficientbench.metrics.monitoring.meters import ENTRY_POINTS as METERS
    from efficientbench.planning.table import plain_table
    from efficientbench.training.reinforcement.rewards import ENTRY_POINTS as REWARDS

    keys = {
        VARIANTS: "model.attention.kind, model.position.kind",
        TASKS: "--tasks, rl.task",
        REWARDS: "rl.reward",
        METHODS: "method",
        METERS: "measurement.meters",
    }
    table = plain_table("installed", ("from", "value of"), left=2)
    for group, key in keys.items():
        for name, place in installed(group).items():
            if _has(words or [""], f"{name} {place} {key} {group.rpartition('.')[2]}"):
                table.add_row(name, place, key)
    return table


def _chosen(part: str, keys: Mapping[str, FieldInfo], words: Mapping[str, str]) -> list[str]:
    """Return the key of another name and the keys that begin with a text; without either, those that have it."""
    beginning = [key for key in keys if key.startswith(part)]
    if part in words:
        return list(dict.fromkeys([words[part], *beginning]))
    return beginning or [key for key in keys if part in key]


def _print_key(key: str, field: FieldInfo, words: Mapping[str, str], console: Console) -> None:
    from rich.markup import escape
    from rich.padding import Padding

    default = field.get_default(call_default_factory=True)
    also = [name for name, ours in words.items() if ours == key]
    console.print(
        f"[bold]{key}[/bold]",
        "" if field.is_required() else escape(f"= {'unset' if default is None else default}"),
        f"  also {', '.join(also)}" if also else "",
    )
    console.print(Padding(escape(field.description or ""), (0, 0, 0, 4)))
