"""Whether a run goes on from a checkpoint that an earlier attempt left in its folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from efficientbench.config.schema import DataConfig, RunConfig
from efficientbench.metrics.analysis.repeats import flat
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.records.record import read_record
from efficientbench.running.output_folder import OutputFolder
from efficientbench.training.checkpoints.manifest import (
    Manifest,
    complete,
    find_good,
    read_manifest,
    remove_partial,
    set_damaged_aside,
)

FREE = ("output", "data.cache", "parallel.", "checkpoint.", "faults.", "training.micro_batch_size")
"""What may differ between the attempts of a run: where files lie, how ranks share the work, when the state is saved,
which faults end it."""


def prepare_folder(folder: OutputFolder, config: RunConfig, data: Sequence[str], fresh: bool) -> Path | None:
    """Decide where the run begins, and say so; the folder is then ready for it.

    An attempt that did not come to its end, with the same configuration but for `FREE`, is gone on with from its newest
    checkpoint that is whole, also where the same tokens lie elsewhere by now. Anything else moves to `previous/`.

    Args:
        folder: of the run, which this process holds.
        config: of the run.
        data: fingerprint of each source's tokens.
        fresh: begin anew in any case.

    Returns:
        The folder of the checkpoint to go on from; None: the run begins with its first step.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        remove_partial(folder.path)
        good = None if fresh or _is_completed(folder) else _usable(folder, config, data)
        if good is None:
            folder.set_aside()
            return None
        set_damaged_aside(folder.path, good)
        # It tells of an attempt that is over, and this one may end without a record.
        folder.record.unlink(missing_ok=True)
    except OSError as error:
        raise folder.unwritable(error) from None
    _say(f"goes on after step {read_manifest(good).step:,}, from {good}")
    return good


def _usable(folder: OutputFolder, config: RunConfig, data: Sequence[str]) -> Path | None:
    if not complete(folder.path):
        return None
    good, problems = find_good(folder.path)
    for problem in problems:
        _say(f"passed over: {problem}")
    if good is None:
        return None
    before = read_manifest(good)
    differing = differences(before.config, config.model_dump(mode="json"))
    if differing == ["data.path"] and _is_moved(before, config, data):
        _say("data.path: the same tokens from another place")
        return good
    if not differing:
        return good
    _say(f"the earlier run in {folder.path} differs in {', '.join(differing)}, and moves to previous/")
    return None


def _is_moved(before: Manifest, config: RunConfig, data: Sequence[str]) -> bool:
    """Whether the run's tokens are those of the checkpoint, in the same shares: their order, and with it each step's
    samples, follows from these and the seed, not from where the files lie."""
    return before.data == list(data) and DataConfig.model_validate(before.config["data"]).weights == config.data.weights


def differences(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The keys in which two configurations differ, but for `FREE`."""
    before, now = flat(recorded), flat(wanted)
    keys = [key for key in {**before, **now} if not key.startswith(FREE)]
    return sorted(key for key in keys if before.get(key) != now.get(key))


def _is_completed(folder: OutputFolder) -> bool:
    try:
        return read_record(folder.record).status == "completed"
    except MetricsError:
        return False


def _say(line: str) -> None:
    print(line)
    sys.stdout.flush()
