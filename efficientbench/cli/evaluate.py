"""The command `efficientbench evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efficientbench.cli.options import (
    AllowCode,
    Kinds,
    RunFolder,
    Step,
    Weights,
    count,
    find_run,
    names,
    option,
    rounded,
    switch,
)
from efficientbench.evaluation.task import BATCH_TOKENS, Options

if TYPE_CHECKING:
    from efficientbench.evaluation.rank import Evaluation

RESUMES = "stopped: the same command resumes the evaluation"


def task_names() -> list[str]:
    """Return the names of all tasks of `--tasks`: the project's, and those of installed packages."""
    from efficientbench.basics.plugins import installed
    from efficientbench.evaluation.registry import ENTRY_POINTS, TASKS

    return [*TASKS, *installed(ENTRY_POINTS), "package.module:Class"]


def evaluate(
    run_folder: RunFolder,
    arguments: Kinds = None,
    tasks: Annotated[
        str | None, option("LIST", "like core,mmlu,package.module:Class; loss, where --lm-eval is not given")
    ] = None,
    lm_eval: Annotated[str | None, option("LIST", "tasks of lm-eval, like hellaswag,piqa")] = None,
    limit: Annotated[int | None, count("at most N items of each task, and of each in core")] = None,
    data: Annotated[
        str | None, option("FOLDER", "the tasks' items, each task's in its own folder; or URL#sha256=")
    ] = None,
    text: Annotated[Path | None, option("PATH", "what `loss` scores; without it the run's own validation text")] = None,
    step: Step = None,
    batch_tokens: Annotated[int, count("tokens that are computed at once")] = BATCH_TOKENS,
    allow_code: AllowCode = False,
    samples: Annotated[int, count("answers to each question without choices")] = 1,
    temperature: Annotated[float, option("T", "of these answers; 0: the likeliest tokens", 0.0)] = 0.0,
    max_new_tokens: Annotated[int, count("most tokens of such an answer")] = 512,
    contamination: Annotated[
        bool,
        switch(
            "--contamination",
            "count items that stand in the training split, also what was not read; figures without them",
        ),
    ] = False,
    lengths: Annotated[
        str | None, option("LIST", "tokens of passkey, needle and position_loss, like 2048,4096")
    ] = None,
    tp: Annotated[int, count("ranks of this machine that share a copy of the model")] = 1,
    dp: Annotated[int, count("copies of the model, which divide the items")] = 1,
    weights: Weights = None,
) -> None:
    """Score a run's trained model by tasks, item by item; a killed evaluation resumes."""
    from efficientbench.evaluation.data import find_data
    from efficientbench.evaluation.long_context.lengths import read_lengths
    from efficientbench.evaluation.rank import Evaluation
    from efficientbench.generation.on_ranks import SharedModel

    if tp * dp > 1 and lm_eval is not None:
        raise typer.BadParameter("--tp and --dp: lm-eval asks one process; call --lm-eval by itself")
    if contamination and lm_eval is not None:
        raise typer.BadParameter("--contamination: items of lm-eval's tasks are not searched; call --lm-eval by itself")
    run_folder = find_run(run_folder)
    quantization, kinds = rounded(weights, arguments)
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
    model = SharedModel(kinds, step, tp, dp, quantization)
    asked = Evaluation(model, run_folder, names(tasks or "loss"), options)
    _score(asked, tasks is not None or lm_eval is None, lm_eval)


def _score(asked: Evaluation, by_tasks: bool, lm_eval: str | None) -> None:
    """Evaluate by the tasks that are asked for, if `by_tasks`, then by the tasks of lm-eval.

    Raises Exit: the model cannot be scored, or was scored on several ranks, or the user has stopped it.
    """
    from rich.console import Console

    from efficientbench.basics.errors import EvaluationError, GenerationError
    from efficientbench.evaluation.evaluate import evaluate as evaluate_run
    from efficientbench.evaluation.lm_eval.run import evaluate_by_lm_eval
    from efficientbench.launchers.processes.failure import STOP_EXIT_CODES
    from efficientbench.launchers.processes.supervision import print_stderr

    console, model = Console(soft_wrap=True), asked.model
    try:
        if model.tp * model.dp > 1:
            code = asked.run()
            if code in STOP_EXIT_CODES.values():
                print_stderr(RESUMES)
            raise typer.Exit(code)
        if by_tasks:
            evaluate_run(asked.names, asked.options, model.step, console, quantization=model.quantization)
        if lm_eval is not None:
            evaluate_by_lm_eval(names(lm_eval), asked.options, model.step, console, model.quantization)
    except (EvaluationError, GenerationError) as error:
        print_stderr(f"error: {asked.options.folder}: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print_stderr(RESUMES)
        raise typer.Exit(130) from None
