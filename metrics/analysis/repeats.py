"""Repeats of a run: group their records, compute the spread of a figure, and combine the records into one."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.grouped import grouped
from efficientbench.metrics.formulas.definitions import standard_deviation, standard_error
from efficientbench.metrics.formulas.device_use import MeterUse
from efficientbench.metrics.formulas.student import mean_confidence_interval
from efficientbench.metrics.records.figures import Metrics
from efficientbench.metrics.records.plausible import load_records, read_plausible
from efficientbench.metrics.records.record import FIGURES, RECORD_NAME, RunRecord
from efficientbench.metrics.records.record_parts import MOST_MISMATCHES, QualityPoint, Rechecks, Reinforcement
from efficientbench.metrics.records.stored import SKIPPED_FOLDERS

_NAMES = ("variant", "size", "label")
_SAME = (
    "output",
    "data.cache",
    "cache",
    "wandb",
    "prometheus",
    "training.global_batch_tokens",
    "measurement.meters",
    "own_loop.measured_peak_flops",
    *("match", "match_to", "match_left", "checkpoint.at_tokens"),
)
"""Keys of folders, of sinks, of the batch in another unit, of meters, of a measurement, of the run that the model's
size was solved for, and of checkpoints for branches: none changes the training."""
_OF_TRUNK = ("init.run", "init.sha256")
"""Keys that each seed of a branch has of its own."""
_SEEDS = ("training.seed", "data.seed", "curriculum.seed", "own_loop.seed")
_BEFORE = {
    **{"training.optimizer": "adamw", "evaluation.core_every": 0, "evaluation.core_limit": 100},
    "data.attention_within_documents": False,
}
"""Key → what runs did before the key existed."""
_BEFORE_WITH_EXPERTS = {"model.moe.auxiliary_over": "micro_batch"}
"""The same of a key that only a mixture of experts has."""
_INTERVALS = ("al_s", "al_s_p50")


@dataclass(frozen=True)
class Spread:
    """A figure over repeats, in its own unit."""

    mean: float
    low: float | None
    """Lower end of the mean's 95 % confidence interval, Student's, as runs are independent; None for a single run, and
    where a measured figure is equal in all runs: a spread of exactly 0 is no noise."""
    high: float | None
    """Upper end of the same interval."""
    std: float | None
    """Sample standard deviation over the repeats: the noise between runs and seeds."""


@dataclass(frozen=True)
class Group:
    """Runs of one configuration that differ in nothing but their seed."""

    records: tuple[RunRecord, ...]
    left_out: tuple[str, ...] = ()
    """A sentence for each record that another one stands for."""

    @property
    def first(self) -> RunRecord:
        """Return the record with the lowest seed, for everything that repeats share."""
        return self.records[0]

    @property
    def name(self) -> str:
        return self.first.run

    def values(self, metric: str) -> list[float]:
        """Return the figure of each run; an empty list where a run lacks it."""
        values = [getattr(record, metric) for record in self.records]
        return [] if any(value is None for value in values) else [float(value) for value in values]

    def spread(self, metric: str) -> Spread | None:
        """Return a figure's mean and spread over the repeats; None where a run lacks it."""
        values = self.values(metric)
        if not values:
            return None
        low, high = mean_confidence_interval(values) or (None, None)
        # Runs may share a whole number, such as bytes, to the last digit.
        if len(set(values)) == 1 and not isinstance(getattr(self.first, metric), int):
            low = high = None
        return Spread(math.fsum(values) / len(values), low, high, standard_deviation(values))


def group_repeats(records: Iterable[RunRecord]) -> list[Group]:
    """Return the records in groups of repeats, each by ascending seed; groups stay in the order of the records.

    Repeats share data, devices, kernels, status and the configuration, except for seeds and folders. A group has each
    seed's latest record, since running a seed again adds no noise between seeds, and no copies.
    """
    groups = grouped((_identity(record, without=(*_SAME, *_SEEDS)), record) for record in records)
    return [_group(group) for group in groups.values()]


def _group(records: Sequence[RunRecord]) -> Group:
    latest: dict[tuple[int, int], RunRecord] = {}
    left_out = []
    for record in sorted(records, key=lambda record: record.started_at):
        seeds = seeds_of(record)
        if (other := latest.get(seeds)) is not None:
            again = "is there twice" if other.started_at == record.started_at else f"ran again at {record.started_at}"
            left_out.append(f"{_told(other)} {again}: the latest of a seed stands for it")
        latest[seeds] = record
    found: list[RunRecord] = []
    for _, record in sorted(latest.items()):
        why, original = next(((why, each) for each in found if (why := _same_run(each, record))), ("", record))
        if why:
            left_out.append(f"{_told(record)} is a copy of seed {original.seed}, which stands for it: the same {why}")
        else:
            found.append(record)
    return Group(tuple(found), tuple(left_out))


def seeds_of(record: RunRecord) -> tuple[int, int]:
    """Return the seeds of a run's weights and of its order of the data."""
    # Earlier records have no seed of the order, which was that of the weights.
    return record.seed, record.seed if record.data_seed is None else record.data_seed


def _told(record: RunRecord) -> str:
    return f"{record.run}, seed {record.seed}, of {record.started_at}"


def _same_run(one: RunRecord, other: RunRecord) -> str:
    """Return what two records share that no two runs do, whatever their seeds; empty where they are of two runs."""
    if datetime.fromisoformat(one.started_at) == datetime.fromisoformat(other.started_at):
        return "start"
    times_s = one.step_time_percentiles_s
    return "step times" if times_s is not None and times_s == other.step_time_percentiles_s else ""


def load_group(folder: Path) -> Group:
    """Return the repeats, or the single run, whose records lie below a folder.

    Raises:
        MetricsError: the folder does not exist, holds no record or a damaged one, or holds several groups of runs.
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


def model_identity(record: RunRecord, without: Collection[str] = ()) -> str:
    """Return a text that is the same for runs of one model, trained the same way, whatever their names and seeds.

    They may differ in the keys of `without`, too.

    Such runs share the configuration, and also parameters, FLOPs and kernels: a configuration alone does not show that
    two runs built and computed the same.
    """
    return _identity(record, without=(*_SAME, *_SEEDS, *_NAMES, *without))


def _identity(record: RunRecord, without: Sequence[str]) -> str:
    config = dotted(record.config)
    without = (*without, *(_OF_TRUNK if record.branched_after else ()))
    content: dict[str, Any] = {
        # An older configuration may lack the keys that are unset here.
        "config": {key: value for key, value in config.items() if key not in without and value is not None},
        "device": [record.device_name, record.devices],
        "layout": [record.tp, record.pp, record.dp, record.ep, record.cp, record.micro_batch_size],
        "kernels": record.kernels,
        "data": [(source.fingerprint, source.weight) for source in record.data or ()],
        "questions": None if record.reinforcement is None else record.reinforcement.files_sha256,
        "model": [record.parameters, record.parameters_active, _counted_flops(record)],
        "status": record.status,
        "tokens": _length(record),
        "formulas": record.formula_id,
        "energy_scope": record.energy_scope,
    }
    if "variant" not in without:
        content["run"] = [record.run, record.variant, record.size]
    return json.dumps(content, sort_keys=True)


def _length(record: RunRecord) -> list[float | None]:
    # How many steps a time holds, each run finds out.
    if record.time_limit_s is not None:
        return [record.time_limit_s]
    # Each seed of a fine-tuning draws examples of different lengths.
    if record.finetuning or record.tokens_trained is None:
        return [None if record.finetuning else record.tokens, record.steps_measured]
    # A run that was resumed measures its last steps alone.
    return [record.tokens_trained]


def _counted_flops(record: RunRecord) -> float | None:
    """Return a run's FLOPs per token; None where they follow from the documents that it read, which a seed chooses."""
    return None if record.section("data").get("attention_within_documents") else record.flops_per_token


def dotted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's values by dotted key; a key that it is too old to have gets what runs did then."""
    leaves = flat(config)
    return _BEFORE | (_BEFORE_WITH_EXPERTS if "model.moe.experts" in leaves else {}) | leaves


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a tree's leaves by their paths: {'a': {'b': 1}} → {'a.b': 1}."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return leaves


def load_neighbours(*folders: Path) -> list[Group]:
    """Return the runs in the folders beside these ones; some may be of identical models.

    Damaged records are skipped: the comparison does not need them.
    """
    own = {folder.resolve() for folder in folders}
    around = {path for folder in own for path in folder.parent.iterdir() if path.is_dir()} - own
    beside = {path for path in around if path.name not in SKIPPED_FOLDERS}
    records = []
    for path in sorted(beside):
        for file in (path / RECORD_NAME, *sorted(path.glob(f"*/{RECORD_NAME}"))):
            if file.is_file() and file.parent.name not in SKIPPED_FOLDERS:
                with suppress(MetricsError):
                    records.append(read_plausible(file))
    return group_repeats(records)


def combine(group: Group) -> RunRecord:
    """Combine the repeats into one record: each figure by its `over_repeats`, mostly the mean.

    The intervals of `al_s` and `al_s_p50` and the loss's standard error come from the spread over the repeats. A figure
    that one repeat lacks is absent for that repeat's reason. Outliers, rechecks and disturbances are those of all
    repeats, evaluations are dropped, and what is not combined is the first repeat's.
    """
    records = group.records
    if len(records) == 1:
        return group.first
    values: dict[str, Any] = {}
    # Facts that repeats share are absent for one reason.
    unavailable = {name: why for name, why in group.first.unavailable.items() if name not in Metrics.model_fields}
    deviations: dict[str, float] = {}
    for name in Metrics.model_fields:
        over_repeats = FIGURES[name].over_repeats
        lacking = next((record for record in records if getattr(record, name) is None), None)
        if over_repeats is None or lacking is not None:
            values[name] = None
            unavailable[name] = lacking.unavailable[name] if lacking is not None else "each repeat has its own"
            continue
        given = [getattr(record, name) for record in records]
        values[name] = over_repeats(given)
        if isinstance(given[0], float):
            deviations[name] = standard_deviation(given) or 0.0
    for name in _INTERVALS:
        spread = group.spread(name)
        if spread is None:
            continue
        for end, value in ((f"{name}_ci_low", spread.low), (f"{name}_ci_high", spread.high)):
            values[end] = value
            deviations.pop(end, None)
            unavailable.pop(end, None)
            if value is None:
                unavailable[end] = "the runs are equal to the last bit, which is no noise"
    if values["validation_loss"] is not None:
        values["validation_loss_se"] = standard_error(group.values("validation_loss"))
        values["validation_loss_se_values"] = len(records)
        unavailable.pop("validation_loss_se", None)
    further = {
        "repeats": len(records),
        "repeat_std": deviations,
        "unavailable": unavailable,
        "duration_s": math.fsum(record.duration_s for record in records) / len(records),
        "energy_doubt": next((record.energy_doubt for record in records if record.energy_doubt), None),
        "outliers": [outlier for record in records for outlier in record.outliers],
        "quality_curve": _mean_curve(group),
        "rechecks": _rechecks(records),
        "reinforcement": _learned(records),
        "resumed_after_steps": min((record.resumed_after_steps for record in records), key=len),
        "training_scores": [],
        "evaluations": [],
        "meters": MeterUse.of_repeats([record.meters for record in records]),
        "disturbances": [disturbance for record in records for disturbance in record.disturbances],
        "validation_sequence_losses": mean_sequence_losses(records),
    }
    return group.first.model_copy(update=values | further)


def _rechecks(records: Sequence[RunRecord]) -> Rechecks | None:
    """Return the rechecks of all runs together; None where no run made any."""
    made = [record.rechecks for record in records if record.rechecks is not None]
    if not made:
        return None
    mismatches = [mismatch for each in made for mismatch in each.mismatches][:MOST_MISMATCHES]
    return Rechecks(sum(each.count for each in made), sum(each.mismatched for each in made), mismatches)


def _learned(records: Sequence[RunRecord]) -> Reinforcement | None:
    """Combine the runs' reinforcement learning; None where they learned from text."""
    found = [record.reinforcement for record in records if record.reinforcement is not None]
    return Reinforcement.of_repeats(found) if found else None


def mean_sequence_losses(records: Sequence[RunRecord]) -> list[float]:
    """Return each validation sequence's loss, mean over the runs, nats; [] unless all runs read the same text."""
    losses = [record.validation_sequence_losses for record in records]
    texts = {record.validation_text for record in records}
    if len(texts) > 1 or None in texts or len({len(each) for each in losses}) > 1:
        return []
    return [math.fsum(each) / len(each) for each in zip(*losses, strict=True)]


def _mean_curve(group: Group) -> list[QualityPoint]:
    """Return the validations that all repeats made after the same steps, with mean losses.

    Costs are means over the repeats that were not resumed, since a resumed run measures its last attempt alone. Where
    all were resumed, costs are the first repeat's.
    """
    by_step = [{point.step: point for point in record.quality_curve} for record in group.records]
    in_one_go = [number for number, record in enumerate(group.records) if not record.resumed_after_steps] or [0]
    curve = []
    for step, first in by_step[in_one_go[0]].items():
        losses = [points[step].loss for points in by_step if step in points]
        known = [loss for loss in losses if loss is not None]
        points = [by_step[number][step] for number in in_one_go if step in by_step[number]]
        energies = [point.energy_j for point in points if point.energy_j is not None]
        if len(known) < len(by_step):
            continue
        curve.append(
            replace(
                first,
                loss=math.fsum(known) / len(known),
                loss_se=standard_error(known),
                loss_se_values=len(known),
                train_s=math.fsum(point.train_s for point in points) / len(points),
                energy_j=math.fsum(energies) / len(energies) if len(energies) == len(points) else None,
            )
        )
    return curve
