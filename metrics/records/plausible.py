"""Loads the records of runs, and leaves out by name and reason each that cannot be true."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from efficientbench.basics.errors import MetricsError, os_errors_as
from efficientbench.basics.files import sha256
from efficientbench.basics.foreign import MOST_BYTES
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.other_layers import named_by_layers
from efficientbench.metrics.records.record import RECORD_NAME, RunRecord, read_record
from efficientbench.metrics.records.sinks.steplog import read_steps
from efficientbench.metrics.records.stored import current_files, read_each

FRACTIONS = ("amu_fraction", "amu_fraction_max", "pcu", "mfu", "hfu", "padding_share", "goodput")
INTERVALS = {
    "al_s": ("al_s_ci_low", "al_s_ci_high"),
    "al_s_p50": ("al_s_p50_ci_low", "al_s_p50_ci_high"),
    "al_s_drift_ratio": ("al_s_drift_ratio_low", "al_s_drift_ratio_high"),
}
"""Figure → the ends of its interval."""
ROUNDING = 0.01
"""Relative difference that another tool's rounding may make between figures that follow from one another."""
CLOCKS = timedelta(days=1)
"""How far ahead the clock of another machine may be."""
SOURCE, _, EDITION = FORMULAS.rpartition("/")
EDITIONS = tuple(f"{SOURCE}/{number}" for number in range(1, int(EDITION) + 1))
"""The ids of our own formulas; other tools have ids of their own."""


def load_records(folder: Path) -> tuple[list[RunRecord], list[str]]:
    """Read all runs' records below a folder, except those of replaced and traced runs below it.

    Returns:
        The records by run and start, and a message for each that cannot be read or cannot be true.

    Raises MetricsError: as `load_placed`.
    """
    placed, left_out = load_placed(folder)
    return [record for record, _ in placed], left_out


def load_placed(folder: Path) -> tuple[list[tuple[RunRecord, Path]], list[str]]:
    """Read all runs' records below a folder, as `load_records`, each with the folder in which it lies.

    Raises:
        MetricsError: there is no such folder, or it cannot be read.
    """
    with os_errors_as(MetricsError, f"{folder}: cannot be read"):
        if folder.is_file():
            raise MetricsError(f"{folder}: is a file; give the folder that runs were written to")
        if not folder.is_dir():
            raise MetricsError(f"{folder}: there is no such folder to report on")
    placed, left_out = read_each(current_files(folder, RECORD_NAME), lambda path: (read_plausible(path), path.parent))
    return sorted(placed, key=lambda each: (each[0].run, each[0].started_at)), left_out


def read_plausible(path: Path) -> RunRecord:
    """Read a record. Raises MetricsError: it cannot be read, or it cannot be true; the message has every reason."""
    record = read_record(path)
    reasons = [*contradictions(record, datetime.now(timezone.utc)), *_against_steps(record, path)]
    if reasons:
        raise MetricsError(f"{path}: cannot be true: {'; '.join(reasons)}")
    return named_by_layers(record, record.config)


def contradictions(record: RunRecord, now: datetime) -> Iterator[str]:
    """Yield each reason why the record's figures cannot be true at the time `now`."""
    for name in FRACTIONS:
        value = getattr(record, name)
        if value is not None and not 0 <= value <= 1:
            yield f"{name} is {value:.6g}, and a fraction lies between 0 and 1"
    for name, ends in INTERVALS.items():
        value, low, high = (getattr(record, each) for each in (name, *ends))
        # Equal values may have a mean that differs from them in the last bit.
        if None not in (value, low, high) and not low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
            yield f"{name} is {value:.6g}, outside its own interval, {low:.6g} to {high:.6g}"
    for names, name in _PRODUCTS:
        factors, value = [getattr(record, each) for each in names], getattr(record, name)
        # Where no step was measured, another tool may have written 0.
        if None not in factors and value and not math.isclose(math.prod(factors), value, rel_tol=ROUNDING):
            yield f"{name} is {value:.6g}, and {' × '.join(names)} {math.prod(factors):.6g}"
    ranks = _ranks(record)
    # A rank of another's loop may use several devices, each of which was seen.
    most = max(ranks, len(record.timelines), len(record.device_conditions))
    if record.devices > most:
        yield f"it has {record.devices:,} devices, and {ranks:,} ranks (tp × pp × cp × dp)"
    started_at = datetime.fromisoformat(record.started_at)
    if started_at.tzinfo is None:
        started_at = started_at.replace(tzinfo=timezone.utc)
    if started_at - now > CLOCKS:
        yield f"it began at {record.started_at}, which is in the future"
    if record.formula_id.rpartition("/")[0] == SOURCE and record.formula_id not in EDITIONS:
        yield f"formula_id is {record.formula_id}, and the known editions are {', '.join(EDITIONS)}"


_PRODUCTS = (
    (("tokens_per_s", "al_s", "steps_measured"), "tokens"),
    (("tokens_per_s_per_device", "devices"), "tokens_per_s"),
    (("energy_j_per_step", "steps_measured"), "energy_j"),
    (("energy_j_per_token", "tokens"), "energy_j"),
)
"""Figures, and the figure that is their product."""


def _against_steps(record: RunRecord, path: Path) -> Iterator[str]:
    """Yield each reason why the record does not fit its steps' file, where that lies beside it.

    Larger files than MOST_BYTES are held against their checksum alone.
    """
    steps = record.steps_file(path)
    if steps is None or not record.steps_measured:
        return
    try:
        if record.steps_sha256 not in (None, sha256(steps)):
            yield f"{steps.name} beside it was changed: its SHA-256 is not steps_sha256"
        elif steps.stat().st_size <= MOST_BYTES:
            yield from _recomputed(record, steps)
    except OSError as error:
        yield f"{steps.name} beside it cannot be read ({error.strerror})"


def _recomputed(record: RunRecord, steps: Path) -> Iterator[str]:
    """Yield each figure that does not follow from the measured steps of the run's last attempt."""
    try:
        lines = [line for line in read_steps(steps) if line["kind"] == "step" and line.get("measured") is True]
        resumed = max(record.resumed_after_steps, default=0)
        measured = [line for line in lines if line["step"] > resumed]
        tokens = sum(line["tokens"] for line in measured)
        times_s = [line["step_time_s"] for line in measured]
        mean_s = math.fsum(times_s) / len(times_s) if times_s else 0.0
    except (MetricsError, KeyError, TypeError, ValueError) as error:
        yield f"its steps cannot be read ({error})"
        return
    if not measured:
        return
    for name, value in (("steps_measured", len(measured)), ("tokens", tokens)):
        if getattr(record, name) != value:
            yield f"{name} is {getattr(record, name):,}, and that of {steps.name} {value:,}"
    # Rank 0 wrote the file; AL is that of the slowest rank in each step.
    if record.rank_uses or _ranks(record) == 1:
        own_s = record.rank_uses[0].step_time_s if record.rank_uses else record.al_s
        if own_s is not None and not math.isclose(own_s, mean_s, rel_tol=ROUNDING):
            yield f"a step took {own_s:.6g} s, and by {steps.name} {mean_s:.6g} s"


def _ranks(record: RunRecord) -> int:
    return record.tp * record.pp * record.cp * record.dp
