"""Read the folder of a trained run, from any working directory and wherever the folder was moved.

The folder is self-contained: its checkpoints hold configuration and weights, `tokenizer/` a copy of the tokenizer.
`export`, `init.run` and all else that uses a trained run read it here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.registry import code_of, not_loaded
from efficientbench.basics.errors import ConfigError, nearest
from efficientbench.basics.foreign import json_object
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from efficientbench.data_tools.tokens.manifest import load_corpus
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.training.checkpoints.manifest import Manifest, checkpoint_folder, complete, find_good, read_manifest


@dataclass(frozen=True)
class TrainedRun:
    """A run's folder with its job file."""

    folder: Path
    job: Job

    @classmethod
    def read(cls, folder: Path) -> TrainedRun:
        """Read the job file of a run's folder.

        Raises:
            ConfigError: there is no such folder, it is not a run's folder, or its model has a variant from outside this
                project that is not loaded; the message has what a command must name.
        """
        path = OutputFolder(folder).config
        if not folder.is_dir():
            near = nearest(folder.name, [each.name for each in folder.parent.glob("*/")])
            hint = f"did you mean {folder.parent / near}?" if near else "give that of a run"
            raise ConfigError(f"{folder}: no such folder; {hint}")
        if not path.exists():
            repeats = sorted(each.parent.name for each in folder.glob("seed_*/config.json"))
            helps = f"it holds repeats; give one of them: {', '.join(repeats)}" if repeats else "config.json is missing"
            raise ConfigError(f"{folder} is not the folder of a run: {helps}")
        try:
            return cls(folder, Job.read(path))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
        except ValidationError as error:
            if needed := _not_loaded(path):
                raise ConfigError(
                    f"{folder}: its model is code from outside this project, which only a command that names it runs: "
                    f"add {' '.join(needed)}"
                ) from None
            if made := _made_of_tuned(folder):
                raise ConfigError(f"{folder} is the folder of a fine-tuning; a run is made of it by {made}") from None
            raise ConfigError(f"{path}: not the configuration of a run ({_reason(error)})") from None

    def checkpoint(
        self, step: int | None = None, check: Callable[[Path], Manifest] | None = None
    ) -> tuple[Path, list[str]]:
        """Return the folder of a checkpoint, and where newer ones are skipped why, and which this one is.

        Args:
            step: which checkpoint, without verifying it; None: the newest intact one.
            check: verifies a checkpoint, see `find_good`.

        Raises:
            ConfigError: there is no such checkpoint.
        """
        if step is None:
            found, problems = find_good(self.folder, check)
            if found is None:
                raise ConfigError("; ".join([f"{self.folder} has no checkpoint", *problems]))
            if problems:
                step = read_manifest(found).step
                problems.append(f"what follows is of step {step:,}, the newest intact checkpoint")
            return found, problems
        wanted = checkpoint_folder(self.folder, step)
        if not wanted.is_dir():
            there = ", ".join(path.name for path in complete(self.folder)) or "none"
            raise ConfigError(f"{wanted}: no such checkpoint; there: {there}")
        return wanted, []

    def tokenizer(self) -> TextTokenizer:
        """Return the tokenizer that made the run's tokens.

        Raises:
            ConfigError: it is missing, or has changed since.
            DataError: it is damaged.
        """
        source, wanted = OutputFolder(self.folder).tokenizer, self.job.tokenizer_fingerprint
        if not source.is_dir():
            # Runs of earlier versions have no copy. All sources have the same tokenizer.
            manifests = [path for path in self.job.corpora[:1] if path.exists()]
            if not manifests:
                corpora = ", ".join(map(str, self.job.corpora[:1])) or "none"
                raise ConfigError(
                    f"{source}: missing, and so is the corpus that config.json names ({corpora}, seen from "
                    f"{os.getcwd()}): put the tokenizer of the run there"
                )
            corpus = load_corpus(manifests[0])
            source, wanted = corpus.tokenizer_folder, corpus.tokenizer_fingerprint
        found = load_tokenizer(source)
        if wanted not in (None, found.fingerprint):
            raise ConfigError(f"{source} is not the tokenizer that the run was trained with: it has changed since")
        return found


def trained_config(content: Mapping[str, Any]) -> RunConfig:
    """Return the configuration that a checkpoint's manifest holds.

    A configuration from before `model.embedding_multiplier` was a key gets the value 1.0.

    Raises:
        ConfigError: the configuration names a variant that is not loaded, or is of a later version.
    """
    try:
        return RunConfig.model_validate({**content, "model": {"embedding_multiplier": 1.0, **content["model"]}})
    except ValidationError as error:
        raise ConfigError(f"the checkpoint's configuration cannot be read: {_reason(error)}") from None


def changed_code(model: ModelConfig) -> list[str]:
    """Return a warning for each variant from outside this project whose code is not that of a trained model."""
    loaded = code_of(model.model_dump())
    return [
        f"the code of {kind} has changed since the run was trained: what follows is that of the changed code"
        for kind, trained in (model.code or {}).items()
        if trained != loaded.get(kind)
    ]


def _not_loaded(path: Path) -> list[str]:
    """Return what a command must name to read this job file; empty where that is not what the file lacks."""
    config = json_object(path).get("config")
    return not_loaded(config) if isinstance(config, dict) else []


def _made_of_tuned(folder: Path) -> str | None:
    """Return the commands that make a run of a fine-tuning's folder; None: it is no such folder."""
    if (folder / "adapter").is_dir():
        return f"efficientbench finetune merge {folder} MODEL and efficientbench import MODEL --output RUN"
    return f"efficientbench import {folder / 'model'} --output RUN" if (folder / "model").is_dir() else None


def _reason(error: ValidationError) -> str:
    return error.errors()[0]["msg"].removeprefix("Value error, ")
