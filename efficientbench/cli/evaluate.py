"""The command `efficientbench evaluate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from efficientbench.cli.options import names


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
    tasks: Annotated[str, typer.Option("--tasks", metavar="LIST", help="like core,loss")] = "loss",
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
    ] = 8192,
) -> None:
    """Score a run's trained model by tasks, item by item; a killed evaluation goes on."""
    from rich.console import Console

    from efficientbench.config.registry import load_kinds
    from efficientbench.evaluation.data import find_data
    from efficientbench.evaluation.evaluate import evaluate as evaluate_run
    from efficientbench.evaluation.task import Options
    from efficientbench.generation.errors import GenerationError

    load_kinds(arguments or [])
    options = Options(run_folder, find_data(data, run_folder), text, limit, batch_tokens=batch_tokens)
    try:
        evaluate_run(names(tasks), options, step, Console(soft_wrap=True))
    except GenerationError as error:
        print(f"error: {run_folder}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print("stopped: the same command goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
