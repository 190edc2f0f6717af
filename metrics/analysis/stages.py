"""What the training of a model cost, over all runs of which each began with the weights of the one before (`init.run`).

A run's device hours are of its wall time, all attempts, set-up and evaluation included. Its training hours and its
joules are both of its training steps alone: of all of them, at the rates of the measured ones, with the answers that
reinforcement learning samples before them. A branch (`init.state=everything`) costs its own steps, and of its trunk
that part of the whole cost which the trunk's steps before it are of all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import plain_text, read_whole
from efficientbench.metrics.analysis.rollouts import NOT_MEASURED, why_no_energy
from efficientbench.metrics.records.plausible import read_plausible
from efficientbench.metrics.records.record import RECORD_NAME, RunRecord
from efficientbench.metrics.records.record_parts import PhaseCost


def device_hours(record: RunRecord) -> float:
    """Return the device hours of all attempts of a run. Raises MetricsError: the earlier ones' are not known."""
    if record.wall_s is None and record.resumed_after_steps:
        raise MetricsError(f"{record.run}: the wall time of its attempts before the last one is not known")
    return (record.duration_s if record.wall_s is None else record.wall_s) * record.devices / 3600


def training_device_hours(record: RunRecord) -> float:
    """Return the device hours of a run's training steps, rollouts included. Raises MetricsError: they are not known."""
    sampled_s = rollouts.time_s if (rollouts := _rollouts(record)) else 0.0
    measured_s = known(record, "tokens") / known(record, "tokens_per_s")
    return _times_measured(record) * (measured_s + sampled_s) * record.devices / 3600


def training_energy_j(record: RunRecord) -> float:
    """Return the energy of a run's training steps, rollouts included. Raises MetricsError: it is not known."""
    sampled_j = 0.0
    if rollouts := _rollouts(record):
        if rollouts.energy_j is None:
            raise MetricsError(f"{record.run}: {why_no_energy(record, rollouts)}")
        sampled_j = rollouts.energy_j
    return _times_measured(record) * (known(record, "energy_j_per_token") * known(record, "tokens") + sampled_j)


def _rollouts(record: RunRecord) -> PhaseCost | None:
    """Return the cost of what a run sampled before its measured steps; None where it learns from text."""
    if record.reinforcement is None:
        return None
    if record.reinforcement.rollouts is None:
        raise MetricsError(f"{record.run}: {NOT_MEASURED}")
    return record.reinforcement.rollouts


def _times_measured(record: RunRecord) -> float:
    """Return how many times as long as the measured steps all steps of a run are."""
    learned = record.reinforcement
    if record.tokens_trained is None and learned is not None:
        samples = record.section("rl").get("samples")
        if isinstance(samples, int):
            return learned.questions * samples / record.global_batch_size / known(record, "steps_measured")
    return (known(record, "tokens_trained") - _tokens_before(record)) / known(record, "tokens")


def _tokens_before(record: RunRecord) -> int:
    """Return the tokens of the trunk's steps before a branch; 0 where the run is none."""
    return record.branched_after * record.global_batch_size * record.seq_len


def part_before(run: RunRecord, later: RunRecord) -> RunRecord:
    """Return the record of the part of a run that `later` has continued: of its trunk the steps before, else all.

    Raises MetricsError: the tokens of the trunk are not known.
    """
    if not later.branched_after:
        return run
    tokens = _tokens_before(later)
    share = tokens / known(run, "tokens_trained")
    times_s = {"duration_s": run.duration_s * share, "wall_s": None if run.wall_s is None else run.wall_s * share}
    return run.model_copy(update={"tokens_trained": tokens, **times_s})


def known(record: RunRecord, name: str) -> float:
    """Return a figure of a run that is above 0. Raises MetricsError: it is not known, or 0."""
    value = getattr(record, name)
    if not value:
        raise MetricsError(f"{record.run}: {name}: {record.unavailable.get(name, 'it is 0')}")
    return float(value)


def before(record: RunRecord) -> str | None:
    """Return the folder of the run whose weights a run began with, as recorded then; None where it drew them."""
    found = record.section("init").get("run")
    return found if isinstance(found, str) else None


def may_begin_with(record: RunRecord, run: Path, unread: bool = True) -> bool:
    """Return whether a run began with the checkpoint in another run's folder, by its manifest's SHA-256.

    Another SHA-256 than the recorded one is that of another run of this name, or of a later training. `unread` is
    returned for a manifest that cannot be read.
    """
    step = record.section("init").get("step")
    manifest = run / "checkpoint" / f"step_{step if isinstance(step, int) else 0:08}" / "manifest.json"
    try:
        return hashlib.sha256(read_whole(manifest)).hexdigest() == record.section("init").get("sha256")
    except (OSError, ValueError):
        return unread


def earlier_stages(record: RunRecord, folder: Path) -> list[RunRecord]:
    """Return the records of the runs whose weights a run descends from, the earliest first.

    Each is looked for where it was then, else beside the run or above it, as where all folders moved together: there
    its checkpoint must be the recorded one.

    Args:
        record: the run's record.
        folder: the run's folder, or the one of its repeats.

    Raises:
        MetricsError: a run is not found, or its record is damaged or cannot be true.
    """
    found: list[RunRecord] = []
    while (named := before(record)) is not None:
        place = next(_places(record, Path(named), folder.resolve()), None)
        if place is None or len(found) == _MOST_STAGES:
            raise MetricsError(
                f"{record.run} began with the weights of {plain_text(named)}, whose record is not there, or which has "
                "changed since: without it the cost of this life is not known. Put that run's folder back, or beside "
                "this one's"
            )
        earlier, folder = read_plausible(place / RECORD_NAME), place
        found.insert(0, part_before(earlier, record))
        record = earlier
    return found


_MOST_STAGES = 100


def _places(record: RunRecord, named: Path, folder: Path) -> Iterator[Path]:
    """Yield the folders of runs that a run may have begun with."""
    if (named / RECORD_NAME).is_file() and may_begin_with(record, named):
        yield named
    for start in range(1, len(named.parts)):
        for parent in folder.parents:
            place = parent.joinpath(*named.parts[start:])
            if (place / RECORD_NAME).is_file() and may_begin_with(record, place, unread=False):
                yield place
