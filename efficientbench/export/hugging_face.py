"""Write a run's model as a folder that transformers loads without code of ours (`efficientbench export`)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from efficientbench.config.errors import ConfigError
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import count_parameters
from efficientbench.data_tools.files import write_file
from efficientbench.data_tools.manifest import load_corpus
from efficientbench.data_tools.tokenizer import TextTokenizer, load_tokenizer
from efficientbench.export.architectures import CLASSES, Architecture, architecture_of, transformers_config
from efficientbench.export.card import model_card
from efficientbench.export.tokenizers import changed_parts, survives_qwen2
from efficientbench.metrics.records.record import RunRecord, read_record
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.training.checkpoints.manifest import checkpoint_folder, complete, find_good

if TYPE_CHECKING:
    import torch

BYTES_PER_WEIGHT = {"fp32": 4, "bf16": 2, "fp16": 2}
PARTIAL = ".partial"
"""The folder in the target that an export writes to until it is complete."""


@dataclass(frozen=True)
class Model:
    """The model that is exported."""

    config: RunConfig
    weights: Mapping[str, torch.Tensor]
    """Whole tensors by global names (see model/initial_weights.py), each expert's by names of its own."""
    tokenizer: TextTokenizer

    @property
    def architecture(self) -> Architecture:
        """Return the model type in transformers."""
        return architecture_of(self.config.model, survives_qwen2(self.tokenizer))


@dataclass(frozen=True)
class Exported:
    """A finished export."""

    folder: Path
    class_name: str
    """Transformers' class of the model."""
    step: int
    """The checkpoint's."""
    warnings: tuple[str, ...]
    """Checkpoints that were skipped, and what a user of the exported files must know."""


def export(run: Path, folder: Path, step: int | None = None) -> Exported:
    """Write the model of a run into `folder`, which must not exist or be empty.

    The folder gets weights (safetensors, in the dtype of training), configuration, tokenizer and README.md. The
    configuration appears last: a folder that has one is complete.

    Args:
        run: the run's folder.
        folder: where the model goes.
        step: of the checkpoint; None: the newest undamaged one.

    Raises:
        ConfigError: `run` is no run, no class of transformers computes what its model does, there is no such
            checkpoint, or the folder is taken or cannot be written.
        CheckpointError: the checkpoint is damaged.
        DataError: the run's tokenizer is missing or damaged.
        MetricsError: its record is damaged.
    """
    try:
        job = read_job(run)
        architecture_of(job.config.model)
        target = Path(os.path.realpath(folder))
        _refuse_taken(target)
        record = read_record(OutputFolder(run).record) if OutputFolder(run).record.exists() else None
        tokenizer = _tokenizer(job, record)
        checkpoint, warnings = _checkpoint(run, step)
        from efficientbench.training.checkpoints.read import Weights

        weights = Weights(checkpoint)
        model = Model(_trained_config(weights.manifest.config), weights, tokenizer)
        counted = count_parameters(model.config.model)
        trained = model.config.model
        untied = counted.embedding if trained.tied and trained.embedding_multiplier != 1 else 0
        needed_bytes = BYTES_PER_WEIGHT[model.config.training.dtype] * (counted.total + untied)
        with _claimed(target, needed_bytes) as partial:
            warnings += write_model(model, partial)
            card = model_card(
                model.config, model.architecture, weights.manifest.step, job.budget.steps, record, warnings
            )
            write_file(partial / "README.md", card.encode())
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: {error.strerror or error}; nothing was exported") from None
    return Exported(target, CLASSES[model.architecture], weights.manifest.step, tuple(warnings))


def write_model(model: Model, folder: Path) -> list[str]:
    """Write configuration, tokenizer and weights into an existing folder; return warnings for the user.

    Raises:
        ConfigError: the weights are not those of the run's model, or transformers refuses its shapes.
    """
    from efficientbench.export.tensors import exported
    from efficientbench.export.weight_files import write_shards

    _write_configuration(model, folder)
    # The tokenizer's own way of writing gives a folder its name only when it is complete.
    model.tokenizer.save(folder / "tokenizer")
    for path in (folder / "tokenizer").iterdir():
        path.rename(folder / path.name)
    (folder / "tokenizer").rmdir()
    write_shards(exported(model.weights, model.config.model, model.architecture), folder)
    changed = changed_parts(model.tokenizer, folder)
    if not changed:
        return []
    return [
        f"AutoTokenizer of this transformers release replaces the tokenizer's {', '.join(changed)}, and ids would "
        "differ from those of training; load it with PreTrainedTokenizerFast instead"
    ]


def _checkpoint(run: Path, step: int | None) -> tuple[Path, list[str]]:
    """Return the checkpoint's folder, and why newer ones are skipped."""
    if step is None:
        found, problems = find_good(run)
        if found is None:
            raise ConfigError("; ".join([f"{run} has no checkpoint to export", *problems]))
        return found, problems
    folder = checkpoint_folder(run, step)
    if not folder.is_dir():
        there = ", ".join(path.name for path in complete(run)) or "none"
        raise ConfigError(f"{folder}: no such checkpoint; there: {there}")
    return folder, []


def _trained_config(content: Mapping[str, Any]) -> RunConfig:
    """Return a checkpoint's configuration; before `model.embedding_multiplier` was a key, what is exported had none."""
    return RunConfig.model_validate({**content, "model": {"embedding_multiplier": 1.0, **content["model"]}})


def read_job(run: Path) -> Job:
    """Return the job of a run's folder. Raises ConfigError: there is none, or it is damaged."""
    path = OutputFolder(run).config
    if not run.is_dir():
        raise ConfigError(f"{run}: no such folder; give that of a run, like output/efficientllm_benchmark/gqa_0.5B")
    if not path.exists():
        repeats = sorted(each.parent.name for each in run.glob("seed_*/config.json"))
        helps = f"it holds repeats; give one of them: {', '.join(repeats)}" if repeats else "config.json is missing"
        raise ConfigError(f"{run} is not the folder of a run: {helps}")
    try:
        return Job.read(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{path}: not the configuration of a run ({reason})") from None


def _refuse_taken(folder: Path) -> None:
    if folder.is_dir():
        names = sorted(path.name for path in folder.iterdir())
        if PARTIAL in names:
            raise ConfigError(
                f"{folder}: another export writes here, or was killed while it did; then remove {folder / PARTIAL}"
            )
        if names:
            raise ConfigError(f"{folder} is not empty (it holds {names[0]}); give a new or empty folder")
    elif folder.exists():
        raise ConfigError(f"{folder} is a file; give a new or empty folder")


@contextlib.contextmanager
def _claimed(folder: Path, needed_bytes: int) -> Iterator[Path]:
    """Make the folder and yield one inside it, whose files move up if the block ends without an error."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes < needed_bytes:
        raise ConfigError(
            f"no space left in {existing}: the weights take {needed_bytes / 1e9:,.2f} GB, {free_bytes / 1e9:,.2f} GB "
            "are free"
        )
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / PARTIAL
    partial.mkdir()
    try:
        yield partial
        for path in sorted(partial.iterdir(), key=lambda path: path.name == "config.json"):
            path.rename(folder / path.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()  # only an empty one can be removed


def _tokenizer(job: Job, record: RunRecord | None) -> TextTokenizer:
    """Return the tokenizer that made the run's tokens."""
    # All sources have the same tokenizer.
    corpus = load_corpus(job.corpora[0])
    found = load_tokenizer(corpus.tokenizer_folder)
    trained = record.data[0].tokenizer_fingerprint if record and record.data else corpus.tokenizer_fingerprint
    if found.fingerprint != trained:
        raise ConfigError(
            f"{corpus.tokenizer_folder} is not the tokenizer that the run was trained with: it has changed since"
        )
    return found


def _write_configuration(model: Model, folder: Path) -> None:
    """Write config.json and generation_config.json."""
    from transformers import GenerationConfig

    eos_token_id = model.tokenizer.eod_id
    transformers_config(model.config, model.architecture, eos_token_id).save_pretrained(folder)
    base = model.config.model.position.rope_base
    if base is not None:
        # Releases before 5 read the base from this key; without it they use a default of their own.
        path = folder / "config.json"
        content = json.loads(path.read_bytes()) | {"rope_theta": base}
        write_file(path, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())
    GenerationConfig(eos_token_id=eos_token_id, pad_token_id=eos_token_id).save_pretrained(folder)
