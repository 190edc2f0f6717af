"""`efficientbench evaluate --lm-eval`: tasks of lm-eval on a run's model, its figures and samples beside our own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from efficientbench.config.errors import ConfigError
from efficientbench.evaluation.results import FOLDER, ResultFile, write_summary
from efficientbench.evaluation.task import ItemResult, Options, Summary, prompt_hash
from efficientbench.generation.opened import opened
from efficientbench.training.checkpoints.manifest import checkpoint_folder, identity

CORRECT = ("acc", "exact_match")
"""lm-eval's figures of one sample that say right (1) or wrong (0)."""


def evaluate_by_lm_eval(names: Sequence[str], options: Options, step: int | None, console: Console) -> None:
    """Score a run's model by tasks of lm-eval, and write `evaluation/lm_eval_<task>` for each.

    Answers are kept as they come, in a file of the checkpoint: a killed evaluation asks for the others alone.

    Args:
        names: of tasks, those of lm-eval or of YAML files in the folder `data` of the options.
        options: of the command.
        step: of the checkpoint; None: the newest that is whole.
        console: for progress and figures.

    Raises:
        ConfigError: lm-eval is not installed, or has no such task.
        CheckpointError, DataError, DeviceError: as `opened`.
        GenerationError: the model computed NaN.
    """
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ModuleNotFoundError as error:
        raise ConfigError(f"--lm-eval: {error.name} is not installed: pip install 'efficientbench[eval]'") from None
    manager = TaskManager(include_path=None if options.data is None else str(options.data))
    unknown = [name for name in names if name not in manager.all_tasks]
    if unknown:
        raise ConfigError(f"--lm-eval: lm-eval {lm_eval.__version__} has no task {unknown[0]!r}: `lm-eval ls tasks`")
    with opened(options.folder, step) as run:
        from efficientbench.evaluation.lm_eval_adapter import Adapter

        def progress(done: int, requests: int) -> None:
            console.print(f"lm-eval: {done:,} of {requests:,} requests", highlight=False)

        checksum = identity(checkpoint_folder(options.folder, run.step))
        (options.folder / FOLDER).mkdir(exist_ok=True)
        found = lm_eval.simple_evaluate(
            Adapter(run, options.batch_tokens, progress),
            tasks=list(names),
            limit=options.limit,
            use_cache=str(options.folder / FOLDER / f"lm_eval_{checksum[:12]}"),
            task_manager=manager,
            bootstrap_iters=0,
        )
        about = {"step": run.step, "checkpoint_sha256": checksum}
    for name, results in found["results"].items():
        settings = {
            "limit": options.limit,
            "lm_eval": lm_eval.__version__,
            "version": found["versions"].get(name),
            "shots": found["n-shot"].get(name),
        }
        _write(options.folder, name, {**about, "settings": settings}, results, found["samples"].get(name, []), console)


def _write(
    folder: Path,
    name: str,
    about: Mapping[str, Any],
    results: Mapping[str, Any],
    samples: Sequence[Mapping[str, Any]],
    console: Console,
) -> None:
    task = f"lm_eval_{name}"
    path, header = folder / FOLDER / f"{task}.jsonl", {"task": task, **about}
    with ResultFile(path, header) as file:
        file.append([_item(sample) for sample in samples if str(sample["doc_id"]) not in file.results])
    # lm-eval writes the filter behind the figure's name: "acc,none".
    values = {key.removesuffix(",none"): value for key, value in results.items()}
    figures = {key: float(value) for key, value in values.items() if type(value) in (int, float)}
    write_summary(path.with_suffix(".json"), header, len(samples), Summary(figures))
    for key, value in figures.items():
        console.print(f"{task}: {key} {value:.6g}", highlight=False)


def _item(sample: Mapping[str, Any]) -> ItemResult:
    right = next((bool(sample[key]) for key in CORRECT if sample.get(key) in (0, 1)), None)
    given = json.dumps(sample["arguments"], sort_keys=True, default=str)
    answer = json.loads(json.dumps(sample["filtered_resps"], default=str))
    return ItemResult(str(sample["doc_id"]), prompt_hash(given), answer, right)
