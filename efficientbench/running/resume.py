"""Compare a run with what lies in its folder: a complete record is kept, an interrupted attempt is resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import CheckpointError, ConfigError, MetricsError
from efficientbench.basics.foreign import json_object
from efficientbench.basics.language import in_users_language
from efficientbench.config.schema import DataConfig, RunConfig
from efficientbench.metrics.analysis.repeats import dotted
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.record import RunRecord, read_record
from efficientbench.metrics.records.sinks.steplog import StepLog, keep_lost, time_lost
from efficientbench.running.initialisation import initialised
from efficientbench.running.output_folder import OutputFolder
from efficientbench.training.checkpoints.manifest import (
    Manifest,
    find_good,
    read_manifest,
    remove_partial,
    set_damaged_aside,
    verify,
)

SAME = ("output", "data.cache", "wandb", "prometheus", "training.global_batch_tokens", "match", "faults.preflight_s")
"""Beginnings of keys that change nothing that is measured: of folders, of sinks, of the batch in another unit, of the
run that a model's size was solved for, which other keys hold, and of what precedes the first step."""
INITIALISED_SAME = (*SAME, "init.run")
"""The same for configurations from `initialised`, whose `init.sha256` identifies the weights of `init.run`."""
MAY_DIFFER = (
    *(*INITIALISED_SAME, "parallel.", "checkpoint.", "faults."),
    *("training.micro_batch_size", "training.recheck_every", "rl.batch", "measurement.meters"),
)
"""Keys, or beginnings of keys, in which the attempts of a run may differ: none of them changes what is learned."""


def settings(config: Mapping[str, Any], ignored: tuple[str, ...] = SAME) -> dict[str, Any]:
    """Return a configuration's values by dotted key, without the keys that begin with one of `ignored`."""
    return {key: value for key, value in dotted(config).items() if not key.startswith(ignored)}


def differences(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the keys in which two settings differ; a key that is absent counts as null."""
    return sorted(key for key in {*recorded, *wanted} if recorded.get(key) != wanted.get(key))


def complete_record(
    folder: OutputFolder, config: RunConfig, micro_batch_size: int, device_name: str, smaller: bool = False
) -> RunRecord | None:
    """Return the folder's record if a new run would measure the same again, else None.

    The record must be complete and of the same configuration, device and formulas.

    Args:
        folder: the run's folder.
        config: the configuration as the user wrote it.
        micro_batch_size: the configuration's micro-batch size, fitted to the devices.
        device_name: the product name of this machine's devices.
        smaller: whether a record counts whose micro-batch had to be smaller for lack of memory.
    """
    try:
        record, config = read_record(folder.record), initialised(config, folder)
    except (MetricsError, ConfigError):
        return None
    contents = record.config, config.model_dump(mode="json")
    recorded, wanted = (settings(content, INITIALISED_SAME) for content in contents)
    wanted["training.micro_batch_size"] = micro_batch_size
    if wanted["kernels.fused"] is None:
        # The device chose it for the record, and would choose the same again.
        wanted["kernels.fused"] = recorded.get("kernels.fused")
    asked = recorded.get("training.micro_batch_size_asked")
    if smaller and asked is not None:
        recorded |= {"training.micro_batch_size": asked, "training.micro_batch_size_asked": None}
    found = (record.status, record.device_name, record.formula_id)
    same = found == ("completed", device_name, FORMULAS) and not differences(recorded, wanted)
    return record if same else None


def prepare_folder(
    folder: OutputFolder, usable: Callable[[], Path | None], is_same: Callable[[Mapping[str, Any]], bool], fresh: bool
) -> Path | None:
    """Decide at which step the run begins, print it, and prepare the folder, in which no earlier failure stays.

    The run resumes from the newest intact checkpoint of an interrupted attempt that it may resume from. Else everything
    that an earlier run wrote moves to `previous/`; of attempts at this run, the time that they took stays in its steps.

    Args:
        folder: the run's folder, which this process has locked.
        usable: returns that checkpoint, and prints why others are skipped; None if there is none.
        is_same: whether an earlier attempt's configuration, read from JSON, is this run's.
        fresh: start at step 1, whatever checkpoint there is.

    Returns:
        The folder of the checkpoint to resume from; None: the run starts at step 1.

    Raises:
        ConfigError: the folder cannot be written.
        MetricsError: an earlier attempt's steps cannot be read.
    """
    try:
        remove_partial(folder.path)
        is_completed = _is_completed(folder)
        if is_completed:
            _print(f"the run in {folder.path} is complete: it moves to previous/, and a new one starts at step 1")
        elif fresh and folder.steps.exists():
            _print(f"the earlier run in {folder.path} moves to previous/, and a new one starts at step 1")
        anew = fresh or is_completed
        checkpoint = None if anew else usable()
        folder.failure.unlink(missing_ok=True)
        if checkpoint is None:
            lost_s = 0.0 if anew else _time_of_attempts(folder, is_same)
            folder.set_aside()
            if lost_s:
                with contextlib.closing(StepLog(folder.steps)) as log:
                    keep_lost(log, 0, lost_s, 0.0)
            return None
        set_damaged_aside(folder.path, checkpoint)
        # The interrupted attempt's record must not stand for this one, which may end without a record.
        folder.record.unlink(missing_ok=True)
    except OSError as error:
        raise folder.unwritable(error) from None
    _print(f"resumes after step {read_manifest(checkpoint).step:,}, from {checkpoint}")
    return checkpoint


def _time_of_attempts(folder: OutputFolder, is_same: Callable[[Mapping[str, Any]], bool]) -> float:
    """Return how long the attempts in the folder worked, s; 0 where they were attempts at another run."""
    # None where no attempt has come as far, or the file is damaged.
    earlier = json_object(folder.config).get("config")
    return time_lost(folder.steps, 0.0) if isinstance(earlier, dict) and is_same(earlier) else 0.0


def _is_completed(folder: OutputFolder) -> bool:
    try:
        return read_record(folder.record).status == "completed"
    except MetricsError:
        return False


def newest_intact(folder: OutputFolder, check: Callable[[Path], Manifest] | None = None) -> Path | None:
    """Return the newest intact checkpoint, and print why newer ones are skipped, or that a run has left none.

    `check` verifies a checkpoint; None: `verify`.
    """
    checkpoint, problems = find_good(folder.path, check)
    for problem in problems:
        _print(f"skipped: {problem}")
    if checkpoint is None and folder.steps.exists():
        _print(f"the earlier run in {folder.path} has no checkpoint to resume from, and moves to previous/")
    return checkpoint


def may_not_resume(recorded: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Return the keys for which `config` cannot resume an earlier attempt's configuration, which is read from JSON."""
    return differences(settings(recorded, MAY_DIFFER), settings(config.model_dump(mode="json"), MAY_DIFFER))


def usable(folder: OutputFolder, config: RunConfig, data: Sequence[str]) -> Path | None:
    """Return the newest checkpoint from which this pretraining may resume, and print why newer ones are skipped.

    It follows the same formulas, and its configuration differs in `MAY_DIFFER` alone or in the path of the same tokens.
    `data`: the fingerprint of each source's tokens.
    """
    checkpoint = newest_intact(folder, _verify_resumable)
    if checkpoint is None:
        return None
    manifest = read_manifest(checkpoint)
    if manifest.formula != FORMULAS:
        _print(
            f"the earlier run in {folder.path} was trained under the formulas {manifest.formula}, and this program "
            f"trains under {FORMULAS}: it moves to previous/"
        )
        return None
    differing = may_not_resume(manifest.config, config)
    if not differing:
        return checkpoint
    if differing == ["data.path"] and _has_moved(manifest, config, data):
        _print("data.path: the same tokens from another place")
        return checkpoint
    _print(f"the earlier run in {folder.path} differs in {', '.join(differing)}, and moves to previous/")
    return None


def _verify_resumable(checkpoint: Path) -> Manifest:
    """Verify a checkpoint from which training can resume.

    Raises:
        CheckpointError: it is damaged, or of the run's last step, after which no step is left to measure.
    """
    manifest = verify(checkpoint)
    if manifest.holds == "weights":
        raise CheckpointError(f"{checkpoint}: checkpoint of the last step of a run without a complete record")
    return manifest


def _has_moved(manifest: Manifest, config: RunConfig, data: Sequence[str]) -> bool:
    """Return whether the run reads the checkpoint's tokens, in the same shares, from other paths.

    Shares and seed decide the order of the tokens, and with it each step's samples; the paths do not.
    """
    weights = DataConfig.model_validate(manifest.config["data"]).weights
    return manifest.data == list(data) and weights == config.data.weights


def _print(line: str) -> None:
    print(in_users_language(line), flush=True)
