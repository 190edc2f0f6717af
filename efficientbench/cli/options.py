"""Options as all commands declare them, those that several commands share, and what the arguments resolve to."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efficientbench.basics.errors import nearest

if TYPE_CHECKING:
    from efficientbench.config.quantization import Quantization
    from efficientbench.config.schema import RunConfig

MODES = ("dsw", "dlc")
"""Alibaba PAI's names: DSW, this machine alone, the default; DLC, a job of several nodes."""


def option(metavar: str, text: str, least: float | None = None) -> Any:
    """Declare an option that is named as its parameter.

    `metavar`: the name of the option's value on the help page. `least`: the least number that it takes; None: no bound.
    """
    return typer.Option(metavar=metavar, min=least, help=text)


def count(text: str) -> Any:
    """Declare an option that is named as its parameter and takes a number above 0."""
    return option("N", text, 1)


def repeats(text: str) -> Any:
    """Declare the option that repeats runs, with its help."""
    return typer.Option("--repeat", "--seeds", metavar="N", min=1, help=text)


def switch(name: str, text: str) -> Any:
    """Declare an option without a value; `name` is its name, which else would come with a --no-NAME."""
    return typer.Option(name, help=text)


def _words(example: str, completed: Callable[[str], list[str]]) -> Any:
    return typer.Argument(
        metavar="[dsw|dlc] [key=value]...",
        help="dsw: this machine's devices (the default); dlc: several nodes, as MASTER_ADDR, MASTER_PORT, WORLD_SIZE "
        f"and RANK describe them; key=value: a key of the configuration, like {example}",
        autocompletion=completed,
    )


def _keys(beginning: str) -> list[str]:
    """Return the keys with such a beginning, with the sign that follows, for a shell to complete."""
    from efficientbench.config.load import settable_keys

    return [f"{key}=" for key in settable_keys() if key.startswith(beginning)]


def _tuning_keys(beginning: str) -> list[str]:
    """Return the keys of a fine-tuning, as `_keys` does."""
    from efficientbench.finetuning.load import settable_keys

    return [f"{key}=" for key in settable_keys() if key.startswith(beginning)]


def _runs(beginning: str) -> list[str]:
    """Return the runs of all suites and sizes whose name begins so, for a shell to complete."""
    from efficientbench.config.matrix import load_matrix

    matrix = load_matrix()
    named = dict.fromkeys(run.name for run in (*matrix.all_runs, *matrix.other_runs))
    return [name for name in named if name.startswith(beginning)]


RUN = typer.Argument(
    metavar="NAME", help="run of experiments/matrix.yaml or chat.yaml, like gqa_1.5B", autocompletion=_runs
)
Name = Annotated[str, RUN]
Arguments = Annotated[list[str] | None, _words("training.seq_len=1024", _keys)]
TuningArguments = Annotated[list[str] | None, _words("data.max_length=1024", _tuning_keys)]
Smoke = Annotated[bool, switch("--smoke", "the same architecture, scaled down to a minute on a laptop")]
Data = Annotated[str | None, option("PATH", "text: file, folder, glob; tokens; or a blend")]
Tokenizer = Annotated[str | None, option("PATH", "folder or name for AutoTokenizer")]
MatrixFile = Annotated[
    Path | None, typer.Option("--matrix", metavar="FILE", help="a matrix that names the run, added to the shipped one")
]

Only = Annotated[
    str, option("LIST", "runs, variants or suites, like attention or gqa,mla; or fine-tunings, like lora,dora_7B")
]
Sizes = Annotated[str, typer.Option("--sizes", "--size", metavar="LIST", help="like 0.5B,1.5B")]
Axes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="key=v1,v2",
        help="an axis: every value with every value of the others, each in a folder of its own",
    ),
]

PricePerHour = Annotated[float | None, option("X", "of one device, for the money of the whole budget", 0.0)]

RunFolder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="folder of a run, like output/efficientllm_benchmark/gqa_0.5B; its name in output/"
    ),
]
Kinds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[key=value]...",
        help="model.attention.kind=package.module:VARIANT, likewise of position: code of a variant of your own, "
        "which the run was trained with",
    ),
]
Step = Annotated[int | None, option("N", "of the checkpoint; without it the last good one")]
Temperature = Annotated[float, option("T", "divides the logits; 0: always the likeliest token", 0.0)]
Seed = Annotated[int, typer.Option(metavar="S", min=0, max=2**63 - 1, help="of the tokens that are sampled")]
Weights = Annotated[
    str | None,
    option(
        "int8|int4|fp8|bf16|fp16",
        "width of the linear layers' weights, with quantization.group=N and quantization.symmetric=false",
    ),
]
AllowCode = Annotated[bool, switch("--allow-code", "run programs that the model writes, as humaneval needs it")]


def names(text: str) -> tuple[str, ...]:
    """Split a list like `0.5B,1.5B`, without repetitions."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def rounded(weights: str | None, arguments: Sequence[str] | None) -> tuple[Quantization | None, tuple[str, ...]]:
    """Return what `--weights` and its keys among the arguments ask for, and the kinds, whose code is loaded.

    Raises ConfigError: a word of them is wrong.
    """
    from efficientbench.architecture.registry import load_kinds
    from efficientbench.config.quantization import split_quantization

    quantization, kinds = split_quantization(weights, arguments or [])
    load_kinds(kinds)
    return quantization, tuple(kinds)


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
    """Return the configuration and the mode that a command line names.

    Print where the model takes its tokenizer's vocabulary.
    """
    from efficientbench.config.matrix import MATRIX
    from efficientbench.planning.vocabulary import resolve_run

    name, arguments = of_depth(name, arguments)
    config, said = resolve_run(name, smoke, overrides_of(arguments, data, tokenizer), matrix or MATRIX)
    if said:
        typer.echo(said)
    return config, mode_of(arguments)


def mode_of(arguments: Sequence[str]) -> str:
    """Return the last mode among the arguments, or the default."""
    return next((argument for argument in reversed(arguments) if argument in MODES), MODES[0])


def overrides_of(arguments: Sequence[str], data: str | None, tokenizer: str | None = None) -> list[str]:
    """Return the overrides `key=value` among the arguments, and those that `--data` and `--tokenizer` stand for."""
    named = [f"data.{key}={value}" for key, value in (("path", data), ("tokenizer", tokenizer)) if value]
    return [*(argument for argument in arguments if argument not in MODES), *named]


def find_run(word: str | Path, of_suites: bool = False) -> Path:
    """Return the folder that a user names by its path, also below `output/`, or by its name in a suite there.

    A folder that does not exist, and has no name like a run's, comes back as it is, for the command to refuse.

    Raises BadParameter: several suites have the name, or none has it and a run has one like it.

    Args:
        word: what the user typed.
        of_suites: whether the command takes a suite's folder too.
    """
    typed, output = Path(word), Path("output")
    if typed.exists():
        return typed
    patterns = [] if typed.is_absolute() else [glob.escape(str(typed)), f"*/{glob.escape(str(typed))}"]
    named = sorted(path for pattern in patterns for path in output.glob(pattern))
    if len(named) > 1:
        raise typer.BadParameter(f"{word}: there are {', '.join(map(str, named))}: name one by its path")
    if named:
        return named[0]
    began = [path.parts for name in ("record.json", "config.json") for path in output.glob(f"*/*/**/{name}")]
    names = {parts[2] for parts in began} | ({parts[1] for parts in began} if of_suites else set())
    if (near := nearest(typed.name, sorted(names))) is not None:
        raise typer.BadParameter(f"{word}: there is no such folder; did you mean {near}?")
    return typed
