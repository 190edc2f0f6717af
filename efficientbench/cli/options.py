"""Arguments and options that several commands share, and the configuration that they resolve to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from efficientbench.config.schema import RunConfig

MODES = ("dsw", "dlc")
"""Alibaba PAI's names: DSW, this machine alone, the default; DLC, a job of several nodes."""

_MODES_HELP = (
    "dsw: this machine's devices (the default); dlc: several nodes, as MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK "
    "describe them"
)
RUN = typer.Argument(metavar="NAME", help="run of experiments/matrix.yaml or chat.yaml, like gqa_1.5B")
Name = Annotated[str, RUN]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[dsw|dlc] [key=value]...",
        help=f"{_MODES_HELP}; key=value: a key of the configuration, like training.seq_len=1024",
    ),
]
TuningArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[dsw|dlc] [key=value]...",
        help=f"{_MODES_HELP}; key=value: a key of the configuration, like data.max_length=1024",
    ),
]
Smoke = Annotated[bool, typer.Option("--smoke", help="the same architecture, scaled down to a minute on a laptop")]
Data = Annotated[
    str | None, typer.Option("--data", metavar="PATH", help="text: file, folder, glob; tokens; or a blend")
]
Tokenizer = Annotated[str | None, typer.Option("--tokenizer", metavar="PATH", help="folder or name for AutoTokenizer")]
MatrixFile = Annotated[
    Path | None,
    typer.Option("--matrix", metavar="FILE", help="a matrix that names the run, added to the shipped one"),
]

Only = Annotated[
    str,
    typer.Option(
        "--only",
        metavar="LIST",
        help="runs, variants or suites, like attention or gqa,mla; or fine-tunings, like lora,dora_7B",
    ),
]
Sizes = Annotated[str, typer.Option("--sizes", metavar="LIST", help="like 0.5B,1.5B")]
Axes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="key=v1,v2",
        help="an axis: every value with every value of the others, each in a folder of its own",
    ),
]

PromptTokens = Annotated[
    str | None, typer.Option("--prompt-tokens", metavar="LIST", help="with --generate: tokens of a prompt (128,2048)")
]
Batches = Annotated[
    str | None, typer.Option("--batch", metavar="LIST", help="with --generate: rows that are computed at once (1,8)")
]


def names(text: str) -> tuple[str, ...]:
    """Split a list like `0.5B,1.5B`, without repetitions."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def of_depth(name: str, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the run that `depth=N` among the arguments names, and the other arguments.

    base_d12, and base alone, are base_d16 with depth=16. A run of another size stays as it is, with all its arguments.
    """
    depths = [found[1] for argument in arguments if (found := re.fullmatch(r"depth=([1-9]\d*)", argument))]
    variant = re.fullmatch(r"(\D+?)(_d\d+)?", name)
    if not depths or variant is None:
        return name, list(arguments)
    return f"{variant[1]}_d{depths[-1]}", [argument for argument in arguments if not argument.startswith("depth=")]


def resolve_arguments(
    name: str,
    arguments: Sequence[str],
    smoke: bool,
    data: str | None,
    tokenizer: str | None,
    matrix: Path | None = None,
) -> tuple[RunConfig, str]:
    """Return the configuration and the mode that a command line names; the last mode counts.

    Print where the model takes its tokenizer's vocabulary.
    """
    from efficientbench.basics.errors import ConfigError
    from efficientbench.config.matrix import MATRIX
    from efficientbench.planning.vocabulary import resolve_run

    name, arguments = of_depth(name, arguments)
    modes = [argument for argument in arguments if argument in MODES]
    try:
        config, said = resolve_run(name, smoke, overrides_of(arguments, data, tokenizer), matrix or MATRIX)
    except ConfigError:
        from efficientbench.finetuning.load import named_tunings

        if name in named_tunings():
            raise ConfigError(f"{name} is a fine-tuning: efficientbench finetune {name}") from None
        raise
    if said:
        typer.echo(said)
    return config, modes[-1] if modes else MODES[0]


def overrides_of(arguments: Sequence[str], data: str | None, tokenizer: str | None) -> list[str]:
    """Return the overrides `key=value` among the arguments, and those that `--data` and `--tokenizer` stand for."""
    named = [f"data.{key}={value}" for key, value in (("path", data), ("tokenizer", tokenizer)) if value]
    return [*(argument for argument in arguments if argument not in MODES), *named]
