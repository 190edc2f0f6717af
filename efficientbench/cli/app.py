"""The commands. Each imports what it needs when it is called, so that help and errors appear at once."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from efficientbench import __version__
from efficientbench.basics.program import command_that_names, run_program
from efficientbench.cli.chat import chat, serve
from efficientbench.cli.compare import compare
from efficientbench.cli.evaluate import evaluate, task_names
from efficientbench.cli.examples import EXAMPLES
from efficientbench.cli.finetune import finetune
from efficientbench.cli.generate import generate
from efficientbench.cli.launch import launch
from efficientbench.cli.listing import list_keys, list_runs
from efficientbench.cli.options import (
    Arguments,
    Data,
    Kinds,
    MatrixFile,
    Name,
    RunFolder,
    Smoke,
    Step,
    Tokenizer,
    Weights,
    find_run,
    names,
    option,
    repeats,
    resolve_arguments,
    rounded,
    switch,
)
from efficientbench.cli.plan import plan
from efficientbench.cli.speedrun import speedrun
from efficientbench.cli.study import study
from efficientbench.cli.sweep import sweep
from efficientbench.cli.variant import check_variant, new_variant, variant_names
from efficientbench.config.spellings import is_name

app = typer.Typer(
    help="Trains language models that differ in one architectural choice and measures what each choice costs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
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
_EXTRAS = {
    **dict.fromkeys(_TRAIN_MODULES, "train"),
    **dict.fromkeys(_FINETUNE_MODULES, "train,finetune"),
    **dict.fromkeys(("fastapi", "uvicorn"), "train,chat"),
    "vl_convert": "plots",
}
"""The extras that bring a module."""


def _print_version(asked: bool) -> None:
    if asked:
        print(f"efficientbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def run(
    name: Name,
    arguments: Arguments = None,
    smoke: Smoke = False,
    data: Data = None,
    tokenizer: Tokenizer = None,
    repeat: Annotated[int | None, repeats("N runs with consecutive seeds; complete ones are kept")] = None,
    again: Annotated[bool, switch("--again", "with --repeat: train complete repeats again")] = False,
    matrix: MatrixFile = None,
    fresh: Annotated[
        bool, switch("--fresh", "start at step 1, whatever checkpoint an earlier attempt has left")
    ] = False,
) -> None:
    """Train, evaluate, measure and record one run, or several that repeat it."""
    config, mode = resolve_arguments(name, arguments or [], smoke, data, tokenizer, matrix)
    if again and repeat is None:
        raise typer.BadParameter("--again goes with --repeat N: a single run is always trained again")
    from efficientbench.devices.loading import without_collection

    # The collector would scan the modules again and again as they are loaded, a tenth of this process's start.
    with without_collection():
        from efficientbench.running.micro_batch import with_micro_batch
        from efficientbench.running.parent import perform_repeats
        from efficientbench.running.run import Pretraining
        from efficientbench.running.run import run as run_config

    config = with_micro_batch(config, mode)
    if repeat is not None:
        raise typer.Exit(perform_repeats(Pretraining(), config, mode, repeat, again, fresh))
    raise typer.Exit(run_config(config, mode, fresh=fresh))


RowsShown = Annotated[str, option("LIST", "runs, variants or sizes to show, like gqa,mla")]


def report(
    folder: Annotated[Path, typer.Argument(help="folder of runs, like output/efficientllm_benchmark")],
    paper: Annotated[
        bool, switch("--paper", "the five metrics as in EfficientLLM's tables, energy ranked two ways")
    ] = False,
    price_per_hour: Annotated[
        float | None, option("X", "of one device, for the cost of a loss and of a report card", 0.0)
    ] = None,
    matters: Annotated[float, option("PERCENT", "smallest difference that is a reason to choose", 0.0)] = 1.0,
    only: RowsShown = "",
    columns: Annotated[str, option("LIST", "figures of the table and report.csv, like tokens_per_s,al_s,mfu")] = "",
) -> None:
    """Write report.html, report.md, report.csv and TensorBoard's HParams from a folder's records; print the table."""
    from rich.console import Console

    from efficientbench.metrics.report.build import build_report, print_beside
    from efficientbench.metrics.report.choice import Choice
    from efficientbench.metrics.report.first_lines import print_answers
    from efficientbench.metrics.report.headline import print_results
    from efficientbench.metrics.report.paper.paper import print_paper

    made = build_report(
        find_run(folder, of_suites=True), paper, price_per_hour, Choice(names(only), names(columns)), matters / 100
    )
    if made.records and paper:
        print_paper(made.records, Console())
    elif made.records:
        print_answers(made.rows.suites, Console(), price_per_hour)
        print_results(made.records, Console(), made.figures)
    print_beside(made, Console())


class PlotFormat(str, Enum):
    """Formats that `plot` writes."""

    SVG = "svg"
    PDF = "pdf"
    PNG = "png"


def plot(
    folder: Annotated[
        Path, typer.Argument(metavar="REPORT", help="folder of runs, like output/efficientllm_benchmark")
    ],
    form: Annotated[PlotFormat, typer.Option("--format", help="of the plots")] = PlotFormat.SVG,
    only: RowsShown = "",
    columns: Annotated[str, option("LIST", "figures of the LaTeX tables, like tokens_per_s,al_s,mfu")] = "",
) -> None:
    """Write the report's plots as files of their own, and its answers as LaTeX tables, into REPORT/plots."""
    from efficientbench.launchers.processes.supervision import print_stderr
    from efficientbench.metrics.report.choice import Choice
    from efficientbench.metrics.report.paper.paper_plots import write_plots

    written, warnings = write_plots(find_run(folder, of_suites=True), form.value, Choice(names(only), names(columns)))
    for line in warnings:
        print_stderr(f"warning: {line}")
    for path in written:
        print(path)


class Format(str, Enum):
    """Formats that `export` writes."""

    HF = "hf"


def export(
    run_folder: RunFolder,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="where the model goes: a new or empty folder")],
    arguments: Kinds = None,
    to: Annotated[Format, typer.Option(help="hf: for transformers' AutoModelForCausalLM")] = Format.HF,
    step: Step = None,
    weights: Weights = None,
) -> None:
    """Write a run's trained model as a folder that other programs load: weights, configuration, tokenizer."""
    from efficientbench.export.hugging_face import export as export_run
    from efficientbench.launchers.processes.supervision import print_stderr

    quantization, _ = rounded(weights, arguments)
    exported = export_run(find_run(run_folder), folder, step, quantization)
    for line in exported.warnings:
        print_stderr(f"warning: {line}")
    print(f"{exported.class_name} of step {exported.step:,}: {exported.folder}")


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="HF_FOLDER", help="config.json, safetensors and tokenizer.json of a model, or nanochat's files"
        ),
    ],
    output: Annotated[Path | None, option("RUN", "the run's folder, new or empty; output/imported/<its name>")] = None,
) -> None:
    """Make a run's folder of a model that transformers or nanochat saved, so that runs can begin with its weights."""
    from efficientbench.export.importing import import_folder

    made = import_folder(source, output)
    print(f"{made.class_name}, {made.parameters:,} parameters: {made.folder}")
    if made.quantization is not None:
        print(f"its weights were {made.quantization.name}: the run has their values in {made.dtype}")
    given = (f"init.run={made.folder}", "--tokenizer", str(made.folder / "tokenizer"), "--data", "TEXT")
    print("train it further:", shlex.join(["efficientbench", "run", made.name, "--matrix", made.matrix, *given]))


def scripts(
    check: Annotated[bool, switch("--check", "write nothing; fail if any is out of date")] = False,
) -> None:
    """Write the run_*.sh of every run in the matrix, and of every fine-tuning."""
    from efficientbench.config.scripts import check_scripts, write_scripts
    from efficientbench.finetuning.load import tuning_scripts

    (check_scripts if check else write_scripts)(further=tuning_scripts())


def doctor(
    device: Annotated[str | None, option("TYPE", "examine one device type, with a training step on each")] = None,
) -> None:
    """Print what this machine has, what it lacks for which purpose, and how to mend that."""
    from efficientbench.doctor.doctor import check_device, check_machine

    raise typer.Exit(check_machine() if device is None else check_device(device))


def share(run_folder: RunFolder) -> None:
    """Pack a run's record, the doctor's findings and the logs, without paths and texts, to be shared."""
    from efficientbench.doctor.share import pack

    print(f"{pack(find_run(run_folder))}: read it before you send it")


def calibrate(
    name: Name,
    arguments: Arguments = None,
    smoke: Smoke = False,
    matrix: MatrixFile = None,
    seconds: Annotated[float, option("X", "for the rates; start and steps come on top", 1.0)] = 120.0,
    preflight: Annotated[
        bool,
        switch(
            "--preflight",
            "only name devices and links that are slower than the others (faults.preflight_s), and keep nothing",
        ),
    ] = False,
) -> None:
    """Measure what devices and links reach by a run's ranks, and keep it for plans: matmul, memory, what ranks send."""
    from efficientbench.running.calibrate import calibrate as calibrate_ranks

    config, mode = resolve_arguments(name, arguments or [], smoke, None, None, matrix)
    raise typer.Exit(calibrate_ranks(config, mode, seconds, preflight))


def status(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="folder of a run, of a suite, or of all")] = Path(
        "output"
    ),
) -> None:
    """Print how far each run below a folder is: state, step, tokens/s, loss, time left."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from efficientbench.basics.errors import MetricsError
    from efficientbench.planning.table import print_whole
    from efficientbench.sweep.status import statuses

    folder = find_run(folder, of_suites=True)
    if folder.is_file():
        raise MetricsError(f"{folder}: is a file; give the folder that runs were written to")
    if folder == Path("output") and not folder.exists():
        raise MetricsError(
            "no run has begun here yet: efficientbench run NAME --smoke begins one, and efficientbench list has the "
            "names"
        )
    if not folder.is_dir():
        raise MetricsError(f"{folder} is missing")
    found = statuses(folder)
    if not found:
        raise MetricsError(f"{folder}: holds no run yet")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for each in found:
        table.add_row(Text(each.name), Text(each.state), Text(", ".join(filter(None, each.details))))
    print_whole(table, Console())


def profile(
    name: Name, arguments: Arguments = None, smoke: Smoke = False, data: Data = None, tokenizer: Tokenizer = None
) -> None:
    """Train a run, trace its last steps, and print what their time went to, beside the device's roofline."""
    from efficientbench.profiling.profile import profile as profile_run

    raise typer.Exit(profile_run(*resolve_arguments(name, arguments or [], smoke, data, tokenizer)))


_COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, sweep, study, plan, calibrate, report, plot, compare, export),
    *(import_, scripts, doctor, share, status, profile, list_runs, list_keys, chat, finetune, generate, launch, serve),
    *(speedrun, new_variant),
)
_NAMES: dict[Callable[..., None], str] = {import_: "import", list_runs: "list", list_keys: "keys"}
"""Names of commands that are not called as their functions."""
for _command in _COMMANDS:
    app.command(_NAMES.get(_command))(_command)
app.command(cls=command_that_names("Tasks:", task_names))(evaluate)
app.command(cls=command_that_names("Variants:", variant_names))(check_variant)


def is_key(word: str) -> bool:
    """Return whether a word typed as an option is a key, a key without its section, or another name of one."""
    if is_name(word):
        return True
    from efficientbench.config.load import settable_keys
    from efficientbench.finetuning.load import settable_keys as tuning_keys

    return any(word == key.rpartition(".")[2] for key in (*settable_keys(), *tuning_keys()))


def run_command() -> None:
    """Run the command that was typed; print a user's mistake on stderr, without a traceback, and exit with 2."""
    from efficientbench.basics.encoding import use_utf8
    from efficientbench.launchers.files import writable_caches

    use_utf8()
    os.environ.update(writable_caches(os.environ))
    try:
        run_program(app, "efficientbench", EXAMPLES, _EXTRAS, is_key)
    except Exception as error:
        from efficientbench.launchers.processes.supervision import print_stderr
        from efficientbench.running.errors import USERS_MISTAKES, address_limit, is_out_of_memory, unusable_path

        if is_out_of_memory(error):
            print_stderr(f"error: out of memory: {address_limit() or error or type(error).__name__}")
            sys.exit(1)
        refused = unusable_path(error)
        if refused is None and not isinstance(error, USERS_MISTAKES):
            raise
        print_stderr(f"error: {refused or error}")
        sys.exit(2)
