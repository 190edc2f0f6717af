"""The commands. Each imports what it needs when it is called, so that help and errors appear at once."""

from __future__ import annotations

import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from efficientbench.cli.finetune import finetune
from efficientbench.cli.generate import generate
from efficientbench.cli.launch import launch
from efficientbench.cli.options import (
    RUN,
    Arguments,
    Data,
    MatrixFile,
    Name,
    Smoke,
    Tokenizer,
    overrides_of,
    resolve_arguments,
)
from efficientbench.cli.sweep import sweep as sweep_command
from efficientbench.cli.variant import check_variant, new_variant

app = typer.Typer(
    help="Trains language models that differ in one architectural choice and measures what each choice costs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


# What the extra `train` adds to the base, by the names of imports.
_TRAIN_MODULES = {
    *("fsspec", "huggingface_hub", "megatron", "pyarrow", "pynvml", "safetensors"),
    *("tensorboard", "tiktoken", "tokenizers", "torch", "transformers"),
}
# What the extra `finetune` adds to these.
_FINETUNE_MODULES = {"accelerate", "datasets", "deepspeed", "peft", "trl"}


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"efficientbench {version('efficientbench')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    name: Name,
    arguments: Arguments = None,
    smoke: Smoke = False,
    data: Data = None,
    tokenizer: Tokenizer = None,
    repeat: Annotated[
        int | None,
        typer.Option("--repeat", metavar="N", min=1, help="N runs with consecutive seeds; complete ones are kept"),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="with --repeat: train complete repeats again")] = False,
    matrix: MatrixFile = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="start at step 1, whatever checkpoint an earlier attempt has left")
    ] = False,
) -> None:
    """Train, evaluate, measure and record one run, or several that repeat it."""
    config, mode = resolve_arguments(name, arguments or [], smoke, data, tokenizer, matrix)
    if again and repeat is None:
        raise typer.BadParameter("--again goes with --repeat N: a single run is always trained again")
    from efficientbench.running.micro_batch import with_micro_batch

    config = with_micro_batch(config, mode)
    if repeat is not None:
        from efficientbench.running.repeat import run_repeats

        raise typer.Exit(run_repeats(config, mode, repeat, again, fresh))
    from efficientbench.running.run import run as run_config

    raise typer.Exit(run_config(config, mode, fresh=fresh))


app.command("sweep")(sweep_command)


@app.command()
def plan(
    name: Annotated[str | None, RUN] = None,
    arguments: Arguments = None,
    smoke: Smoke = False,
    data: Data = None,
    tokenizer: Tokenizer = None,
    matrix: MatrixFile = None,
    every: Annotated[bool, typer.Option("--all", help="one table of all runs of the matrix; no NAME then")] = False,
    world: Annotated[
        int | None,
        typer.Option("--world", metavar="N", min=1, help="on N accelerators: stages, communication, step time"),
    ] = None,
    devices_per_node: Annotated[
        int | None,
        typer.Option("--devices-per-node", metavar="N", min=1, help="with --world: accelerators in a node; 8"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", help="with --world: a row of metrics/hardware.yaml, like 'H100 SXM'"),
    ] = None,
) -> None:
    """Print what a run will be: parameters, FLOPs, steps, layout, memory. Touches no device."""
    if world is None and (device or devices_per_node) is not None:
        option = "--device" if device is not None else "--devices-per-node"
        raise typer.BadParameter(f"{option} goes with --world N: how many devices there are")
    if every:
        from efficientbench.planning.plan_table import print_matrix

        print_matrix(overrides_of([*([name] if name else []), *(arguments or [])], data, tokenizer), smoke)
        return
    if name is None:
        raise typer.BadParameter("plan needs the name of a run, like gqa_1.5B, or --all")
    config, _ = resolve_arguments(name, arguments or [], smoke, data, tokenizer, matrix)
    from rich.console import Console

    if world is not None:
        from efficientbench.planning.cluster_plan import make_cluster_plan
        from efficientbench.planning.cluster_table import print_cluster_plan

        print_cluster_plan(make_cluster_plan(config, world, devices_per_node or 8, device), Console(width=160))
        return
    from efficientbench.planning.plan import plan_anywhere
    from efficientbench.planning.plan_table import print_plan

    print_plan(plan_anywhere(config), Console(emoji=False))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="folder of runs, like output/efficientllm_benchmark")],
    paper: Annotated[
        bool,
        typer.Option("--paper", help="the five metrics as in EfficientLLM's tables, energy ranked two ways"),
    ] = False,
) -> None:
    """Write report.html, report.md, report.csv and TensorBoard's HParams from a folder's records; print the table."""
    from rich.console import Console

    from efficientbench.metrics.report.build import build_report
    from efficientbench.metrics.report.failures import print_failures
    from efficientbench.metrics.report.headline import print_results
    from efficientbench.metrics.report.paper import print_paper

    made = build_report(folder, paper)
    print_paper(made.records, Console()) if paper else print_results(made.records, Console())
    print_failures(made.failures, Console())
    for line in made.warnings:
        print(f"warning: {line}", file=sys.stderr)
    for path in made.written:
        print(path)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="folder of a run, or of its repeats")],
    second: Annotated[Path, typer.Argument(metavar="B", help="the same of another run; ratios are B over A")],
    despite: Annotated[
        str, typer.Option("--despite", metavar="LIST", help="conditions that may differ, like dtype,layout")
    ] = "",
    target_loss: Annotated[
        float | None, typer.Option("--target-loss", help="print tokens, time and energy to this validation loss")
    ] = None,
) -> None:
    """Print by how much two runs differ, and whether that is more than noise."""
    from rich.console import Console

    from efficientbench.metrics.analysis.compare import compare as compare_groups
    from efficientbench.metrics.analysis.repeats import load_group, load_neighbours
    from efficientbench.metrics.report.comparison import print_comparison

    allowed = [name.strip() for name in despite.split(",") if name.strip()]
    groups = load_group(first), load_group(second)
    comparison = compare_groups(*groups, allowed, target_loss, load_neighbours(first, second))
    print_comparison(comparison, Console())


class Format(str, Enum):
    """Formats that `export` writes."""

    HF = "hf"


@app.command()
def export(
    run_folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="folder of a run, like output/efficientllm_benchmark/gqa_0.5B")
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="where the model goes: a new or empty folder")],
    to: Annotated[Format, typer.Option("--to", help="hf: for transformers' AutoModelForCausalLM")] = Format.HF,
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", help="of the checkpoint; without it the last good one")
    ] = None,
) -> None:
    """Write a run's trained model as a folder that other programs load: weights, configuration, tokenizer."""
    from efficientbench.export.hugging_face import export as export_run

    exported = export_run(run_folder, folder, step)
    for line in exported.warnings:
        print(f"warning: {line}", file=sys.stderr)
    print(f"{exported.class_name} of step {exported.step:,}: {exported.folder}")


@app.command("import")
def import_(
    source: Annotated[
        Path, typer.Argument(metavar="HF_FOLDER", help="config.json, safetensors and tokenizer.json of a model")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="RUN", help="the run's folder, new or empty; output/imported/<its name>"),
    ] = None,
) -> None:
    """Make a run's folder of a model that transformers saved, so that runs can begin with its weights."""
    from efficientbench.export.importing import import_folder

    made = import_folder(source, output)
    print(f"{made.class_name}, {made.parameters:,} parameters: {made.folder}")
    given = (f"init.run={made.folder}", "--tokenizer", str(made.folder / "tokenizer"), "--data", "TEXT")
    print("train it further:", shlex.join(["efficientbench", "run", made.name, "--matrix", made.matrix, *given]))


@app.command()
def scripts(
    check: Annotated[bool, typer.Option("--check", help="write nothing; fail if any is out of date")] = False,
) -> None:
    """Write the run_*.sh of every run in the matrix, and of every fine-tuning."""
    from efficientbench.config.scripts import check_scripts, write_scripts
    from efficientbench.finetuning.load import tuning_scripts

    (check_scripts if check else write_scripts)(further=tuning_scripts())


@app.command()
def doctor(
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="TYPE", help="examine one device type, with a training step on each"),
    ] = None,
) -> None:
    """Print what this machine has, what it lacks for which purpose, and how to mend that."""
    from efficientbench.doctor.doctor import check_device, check_machine

    raise typer.Exit(check_machine() if device is None else check_device(device))


@app.command()
def profile(
    name: Name, arguments: Arguments = None, smoke: Smoke = False, data: Data = None, tokenizer: Tokenizer = None
) -> None:
    """Train a run, trace its last steps, and print what their time went to, beside the device's roofline."""
    from efficientbench.profiling.profile import profile as profile_run

    raise typer.Exit(profile_run(*resolve_arguments(name, arguments or [], smoke, data, tokenizer)))


app.command()(finetune)
app.command()(generate)
app.command()(launch)
app.command("check-variant")(check_variant)
app.command("new-variant")(new_variant)


def run_command() -> None:
    """Run the command that was typed; print a user's mistake on stderr, without a traceback, and exit with 2."""
    try:
        app()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _TRAIN_MODULES | _FINETUNE_MODULES:
            raise
        extra = "train,finetune" if missing in _FINETUNE_MODULES else "train"
        print(
            f"error: {error.name} is not installed, which this command needs: pip install 'efficientbench[{extra}]'",
            file=sys.stderr,
        )
        sys.exit(2)
    except Exception as error:
        from efficientbench.running.errors import USERS_MISTAKES, address_limit, is_out_of_memory

        if is_out_of_memory(error):
            print(f"error: out of memory: {address_limit() or error or type(error).__name__}", file=sys.stderr)
            sys.exit(1)
        if not isinstance(error, USERS_MISTAKES):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
