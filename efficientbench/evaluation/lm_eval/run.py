"""`efficientbench evaluate --lm-eval`: evaluate a run's model on tasks of lm-eval, and store results like our own."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from rich.console import Console

from efficientbench.basics.errors import ConfigError
from efficientbench.config.quantization import Quantization
from efficientbench.evaluation.evaluate import about_run, memory_errors_explained
from efficientbench.evaluation.results import FOLDER, ResultFile, publish
from efficientbench.evaluation.task import ItemResult, Options, Summary, prompt_hash
from efficientbench.generation.open_run import opened
from efficientbench.running.output_folder import OutputFolder

CORRECT = ("acc", "exact_match")
"""lm-eval's metrics of one sample that say right (1) or wrong (0)."""
COUNT = "sample_len"
"""lm-eval's key of the number of a task's documents, which is among its figures."""


def evaluate_by_lm_eval(
    names: Sequence[str], options: Options, step: int | None, console: Console, quantization: Quantization | None = None
) -> None:
    """Score a run's model on tasks of lm-eval, and write `evaluation/lm_eval_<task>` for each.

    Answers are cached in a file per checkpoint, so that an evaluation that was killed resumes.

    Args:
        names: the tasks' names in lm-eval, or in YAML files in the options' folder `data`.
        options: the command's options.
        step: the checkpoint's step; None: the newest intact checkpoint.
        console: prints progress and figures.
        quantization: as for `evaluate`.

    Raises:
        ConfigError: lm-eval is not installed, has no such task, or cannot load it.
        CheckpointError, DataError, DeviceError: see `opened`.
        GenerationError: the model computed NaN.
        EvaluationError: out of memory.
    """
    try:
        import lm_eval

        from efficientbench.evaluation.lm_eval.tasks import Tasks
    except ModuleNotFoundError as error:
        raise ConfigError(f"--lm-eval: {error.name} is not installed: pip install 'efficientbench[eval]'") from None
    manager = Tasks(include_path=None if options.data is None else str(options.data))
    manager.check(names)
    folder = OutputFolder(options.folder).quantized(quantization).path
    with opened(options.folder, step, quantization=quantization) as run:
        from efficientbench.evaluation.lm_eval.adapter import Adapter

        about = about_run(options.folder, run)
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        with memory_errors_explained(options.batch_tokens):
            found = lm_eval.simple_evaluate(
                Adapter(run, options.batch_tokens, console),
                tasks=list(names),
                limit=options.limit,
                use_cache=str(folder / FOLDER / f"lm_eval_{about['checkpoint_sha256'][:12]}"),
                task_manager=manager,
                bootstrap_iters=0,
            )
    for name, results in found["results"].items():
        samples = found["samples"].get(name, [])
        asked = json.dumps([[each["doc_id"], each["arguments"], each["target"]] for each in samples], default=str)
        settings = {
            "items": prompt_hash(asked),
            "limit": options.limit,
            "lm_eval": lm_eval.__version__,
            "version": found["versions"].get(name),
            "shots": found["n-shot"].get(name),
        }
        header = {"task": f"lm_eval_{name}", **about, "settings": settings}
        _write_items(folder, header, samples)
        # A group of tasks has no samples of its own.
        items = len({sample["doc_id"] for sample in samples}) or results.get(COUNT, 0)
        publish(folder, header, items, _summary(results), console)


def _write_items(folder: Path, header: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> None:
    """Write a line per document, or per document and filter if a task has several filters."""
    several = len({sample["filter"] for sample in samples}) > 1
    items = [_item(sample, several) for sample in samples]
    with ResultFile(folder / FOLDER / f"{header['task']}.jsonl", header) as file:
        file.append([item for item in items if item.item not in file.results])


def _item(sample: Mapping[str, Any], several: bool) -> ItemResult:
    name = f"{sample['doc_id']}/{sample['filter']}" if several else str(sample["doc_id"])
    right = next((bool(sample[key]) for key in CORRECT if sample.get(key) in (0, 1)), None)
    given = json.dumps(sample["arguments"], sort_keys=True, default=str)
    answer = json.loads(json.dumps(sample["filtered_resps"], default=str))
    return ItemResult(name, prompt_hash(given), answer, right)


def _summary(results: Mapping[str, Any]) -> Summary:
    """Return lm-eval's figures of a task, without its counts and texts."""
    figures: dict[str, float | None] = {}
    unavailable = {}
    for key, value in results.items():
        # The values may be numpy's numbers.
        if key == COUNT or not isinstance(value, Real):
            continue
        # lm-eval appends the filter to the figure's name: "acc,none".
        name = key.removesuffix(",none")
        figures[name] = float(value) if math.isfinite(value) else None
        if figures[name] is None:
            unavailable[name] = f"lm-eval computed {value}"
    return Summary(figures, unavailable)
