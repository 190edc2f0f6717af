"""Runs that repeat each other: which records belong together, and the spread of a figure over them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efficientbench.metrics.definitions import mean_confidence_interval, standard_deviation
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.records.load import LEFT_OUT, load_records
from efficientbench.metrics.records.record import RECORD_NAME, RunRecord, read_record

_NAMES = ("variant", "size", "label")
_PLACES = ("output", "data.cache")
_SEED = "training.seed"


@dataclass(frozen=True)
class Spread:
    """A figure over repeats, in its own unit."""

    mean: float
    low: float | None
    """95 % confidence interval of the mean, Student's, as runs are independent of each other; None for a single run."""
    high: float | None
    std: float | None
    """Sample standard deviation over the repeats: the noise between runs and seeds."""
    runs: int


@dataclass(frozen=True)
class Group:
    """Runs of one configuration that differ in nothing but their seed."""

    records: tuple[RunRecord, ...]

    @property
    def first(self) -> RunRecord:
        """The record with the lowest seed, for everything in which repeats are alike."""
        return self.records[0]

    @property
    def name(self) -> str:
        return self.first.run

    def values(self, metric: str) -> list[float]:
        """The figure of each run; nothing where a run lacks it."""
        values = [getattr(record, metric) for record in self.records]
        return [] if any(value is None for value in values) else [float(value) for value in values]

    def spread(self, metric: str) -> Spread | None:
        """A figure's mean and spread over the repeats; None where a run lacks it."""
        values = self.values(metric)
        if not values:
            return None
        low, high = mean_confidence_interval(values) or (None, None)
        return Spread(math.fsum(values) / len(values), low, high, standard_deviation(values), len(values))


def group_repeats(records: Iterable[RunRecord]) -> list[Group]:
    """The records, those that repeat each other in one group by ascending seed; groups in the order of the records.

    Repeats have the same configuration but for the seed and for where files lie, the same data, devices and kernels,
    and came to the same end.
    """
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(_identity(record, without=(*_PLACES, _SEED)), []).append(record)
    return [Group(_one_of_each_seed(group)) for group in groups.values()]


def _one_of_each_seed(records: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """By ascending seed; of several with one seed, which say nothing of the noise between seeds, the latest."""
    latest = {record.seed: record for record in sorted(records, key=lambda record: record.started_at)}
    return tuple(latest[seed] for seed in sorted(latest))


def load_group(folder: Path) -> Group:
    """The repeats, or the single run, whose records lie below a folder.

    Raises:
        MetricsError: no such folder, no record or a damaged one, or records of different runs.
    """
    records, damaged = load_records(folder)
    if damaged:
        raise MetricsError("; ".join(damaged))
    groups = group_repeats(records)
    if not groups:
        raise MetricsError(f"{folder}: holds no run's record yet")
    if len(groups) > 1:
        names = ", ".join(dict.fromkeys(group.name for group in groups))
        raise MetricsError(
            f"{folder}: holds {len(groups)} groups of runs that do not repeat each other ({names}): name the folder of "
            "one"
        )
    return groups[0]


def model_identity(record: RunRecord) -> str:
    """The same text for runs of one model, trained the same way, whatever their names and seeds are."""
    return _identity(record, without=(*_PLACES, _SEED, *_NAMES))


def _identity(record: RunRecord, without: Sequence[str]) -> str:
    config = flat(record.config)
    content: dict[str, Any] = {
        "config": {key: value for key, value in config.items() if key not in without},
        "device": [record.device_name, record.devices],
        "layout": [record.tp, record.pp, record.dp, record.ep, record.cp, record.micro_batch_size],
        "kernels": record.kernels,
        "data": [(source.fingerprint, source.weight) for source in record.data or ()],
        "status": record.status,
        "tokens": [record.tokens, record.steps_measured],
        "formulas": record.formula_id,
        "energy_scope": record.energy_scope,
    }
    if "variant" not in without:
        content["run"] = [record.run, record.variant, record.size]
    return json.dumps(content, sort_keys=True)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'a': {'b': 1}} → {'a.b': 1}."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return leaves


def load_neighbours(*folders: Path) -> list[Group]:
    """The other runs that lie beside these folders: a suite's, among which identical models may be.

    A record that is damaged is passed over: it is nobody's concern here.
    """
    own = {folder.resolve() for folder in folders}
    around = {path for folder in own for path in folder.parent.iterdir() if path.is_dir()} - own
    beside = {path for path in around if path.name not in LEFT_OUT}
    records = []
    for path in sorted(beside):
        for file in (path / RECORD_NAME, *sorted(path.glob(f"*/{RECORD_NAME}"))):
            if file.is_file() and file.parent.name not in LEFT_OUT:
                with suppress(MetricsError):
                    records.append(read_record(file))
    return group_repeats(records)
