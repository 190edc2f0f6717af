"""The command `efficientbench evaluate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from efficientbench.cli.options import names
from efficientbench.evaluation.task import BATCH_TOKENS, Options

GOES_ON = "stopped: the same command goes on from here"


def task_names() -> list[str]:
    """Return the names of all tasks of `--tasks`: the project's, and those of installed packages."""
    from efficientbench.basics.plugins import installed
    from efficientbench.evaluation.registry import ENTRY_POINTS, TASKS

    return [*TASKS, *installed(ENTRY_POINTS), "package.module:Class"]


def evaluate(
    run_folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="folder of a run, like output/efficientllm_benchmark/gqa_0.5B")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value]...",
            help="model.attention.kind=package.module:VARIANT, likewise of position: code of a variant of your own, "
            "which the run was trained with",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks", metavar="LIST", help="like core,mmlu,package.module:Class; loss, where --lm-eval is not given"
        ),
    ] = None,
    lm_eval: Annotated[
        str | None, typer.Option("--lm-eval", metavar="LIST", help="tasks of lm-eval, like hellaswag,piqa")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="at most N items of each task, and of each in core"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="FOLDER", help="the tasks' items, each task's in its own folder; or URL#sha256="
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="PATH", help="what `loss` scores; without it the run's own validation text"),
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", help="of the checkpoint; without it the last good one")
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option("--batch-tokens", metavar="N", min=1, help="tokens that are computed at once")
    ] = BATCH_TOKENS,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="run programs that the model writes, as humaneval needs it")
    ] = False,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=1, help="answers to each question without choices")
    ] = 1,
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="T", min=0.0, help="of these answers; 0: the likeliest tokens")
    ] = 0.0,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", metavar="N", min=1, help="most tokens of such an answer")
    ] = 512,
    contamination: Annotated[
        bool,
        typer.Option(
            "--contamination",
            help="count items that stand in the training split, also what was not read; figures without them",
        ),
    ] = False,
    lengths: Annotated[
        str | None,
        typer.Option("--lengths", metavar="LIST", help="tokens of passkey, needle and position_loss, like 2048,4096"),
    ] = None,
    tp: Annotated[
        int, typer.Option("--tp", metavar="N", min=1, help="ranks of this machine that share a copy of the model")
    ] = 1,
    dp: Annotated[
        int, typer.Option("--dp", metavar="N", min=1, help="copies of the model, which divide the items")
    ] = 1,
) -> None:
    """Score a run's trained model by tasks, item by item; a killed evaluation goes on."""
    from rich.console import Console

    from efficientbench.architecture.registry import load_kinds
    from efficientbench.basics.errors import EvaluationError, GenerationError
    from efficientbench.evaluation.data import find_data
    from efficientbench.evaluation.evaluate import evaluate as evaluate_run
    from efficientbench.evaluation.launch import Asked, evaluate_on_ranks
    from efficientbench.evaluation.lm_eval.run import evaluate_by_lm_eval
    from efficientbench.evaluation.long_context.lengths import read_lengths
    from efficientbench.launchers.processes.failure import STOP_EXIT_CODES
    from efficientbench.launchers.processes.supervision import print_stderr

    if tp * dp > 1 and lm_eval is not None:
        raise typer.BadParameter("--tp and --dp: lm-eval asks one process; call --lm-eval by itself")
    if contamination and lm_eval is not None:
        raise typer.BadParameter("--contamination: items of lm-eval's tasks are not searched; call --lm-eval by itself")
    load_kinds(arguments or [])
    options = Options(
        folder=run_folder,
        data=find_data(data, run_folder),
        text=text,
        limit=limit,
        allow_code=allow_code,
        samples=samples,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        lengths=read_lengths(lengths),
        contamination=contamination,
        batch_tokens=batch_tokens,
    )
    try:
        console = Console(soft_wrap=True)
        listed = names(tasks or "loss")
        if tp * dp > 1:
            asked = Asked(tuple(listed), options, step, tp, dp, tuple(arguments or []))
            code = evaluate_on_ranks(asked, console)
            if code in STOP_EXIT_CODES.values():
                print(GOES_ON, file=sys.stderr)
            raise typer.Exit(code)
        if tasks is not None or lm_eval is None:
            evaluate_run(listed, options, step, console)
        if lm_eval is not None:
            evaluate_by_lm_eval(names(lm_eval), options, step, console)
    except (EvaluationError, GenerationError) as error:
        print_stderr(f"error: {run_folder}: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print(GOES_ON, file=sys.stderr)
        raise typer.Exit(130) from None
