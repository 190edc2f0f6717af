"""The cost of a life: training a model and serving it, and from how many served tokens one model overtakes another.

Training is that of `analysis.stages`: all attempts of all runs whose weights a model descends from.

A served token is a new token of a static batch in the engine that the records of generation name. It carries its share
of the prompt: a request of P prompt tokens and n new ones takes one prefill and n - 1 decoding steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.compare import Comparison
from efficientbench.metrics.analysis.fewer_bits import FULL
from efficientbench.metrics.analysis.generation import Combination, combination_of, common_combinations, text_of
from efficientbench.metrics.analysis.judging import NOT_IN_TURNS, TURNS
from efficientbench.metrics.analysis.overtaking import Amount, Life
from efficientbench.metrics.analysis.quality import Cost, cost_to_loss
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.analysis.stages import device_hours, training_device_hours, training_energy_j
from efficientbench.metrics.formulas.ratio import MIN_REPEATS
from efficientbench.metrics.records.generation.generation import GenerationRecord, GenerationRow
from efficientbench.metrics.records.record import RunRecord

Unit = Literal["J", "device hours"]
UNITS: tuple[Unit, Unit] = ("J", "device hours")
_JUDGED: dict[Unit, str] = {"J": "energy_j_per_token", "device hours": "al_s"}
"""Unit → the figure of training whose objection and cautions hold for its costs too."""
NOISE_UNKNOWN = f"it takes {MIN_REPEATS} repeats of both trainings and of both measurements to know the noise"
ONE_BEFORE = "of each earlier stage there is one run, which shows no noise"


@dataclass(frozen=True)
class Model:
    """One side of a comparison of lives."""

    group: Group
    """The repeats of its last training."""
    made: Sequence[GenerationRecord]
    earlier: Sequence[RunRecord] = ()
    """The runs that its weights come from before that, from `earlier_stages`."""


@dataclass(frozen=True)
class Lives:
    """Both models' costs at one combination of prompt, batch and new tokens."""

    combination: Combination
    costs: dict[Unit, tuple[Life, Life]]
    missing: dict[str, str]
    """What is not known, like a unit → the reason."""
    training_hours: tuple[Amount, Amount] | None = None
    """Device hours of the training steps alone, whose energy J are; None where they are not known."""
    at_loss: dict[Unit, tuple[Life, Life]] = field(default_factory=dict)
    """The costs without the steps after the loss that all runs reached; without a unit where that is not known."""
    untold: dict[Unit, str] = field(default_factory=dict)
    """Unit → why its costs have no verdict, whatever their intervals are."""
    carried: dict[Unit, str] = field(default_factory=dict)
    """Unit → what must be known of one side beside a verdict; empty for nothing."""
    differences: int = 2
    """How many differences a unit has, at all combinations together."""


@dataclass(frozen=True)
class Losses:
    """What both models learned for their costs."""

    values: tuple[Amount, Amount] | None
    """Validation losses, nats; None where `why` has the reason."""
    target: float | None
    """The loss up to which costs are counted too, nats; None where `why_not_equal` has the reason."""
    why: str = ""
    why_not_equal: str = ""


def losses_of(comparison: Comparison, weights: Collection[str] = (FULL,)) -> Losses:
    """Return the losses of the compared runs, and the one up to which their costs are compared.

    `weights`: the widths of the weights that serve. The losses of rounded ones are those of evaluations alone.
    """
    rounded = next((width for width in weights if width != FULL), None)
    if rounded is not None:
        why = f"those of training are of the full width, and {rounded} serves: evaluations have its own"
        return Losses(None, None, why, why)
    why = comparison.unavailable.get("validation_loss", "")
    texts = {record.validation_text for side in (comparison.first, comparison.second) for record in side.records}
    if not why and len(texts - {None}) > 1:
        why = "they are of different texts"
    if why:
        return Losses(None, None, why, why)
    first, second = (Amount.mean(side.values("validation_loss")) for side in (comparison.first, comparison.second))
    objection = next((ratio.objection for ratio in comparison.costs if ratio.metric == "tokens_to_loss"), None)
    why = objection.why if objection else comparison.unavailable.get("cost", "")
    if comparison.first.first.reinforcement or comparison.second.first.reinforcement:
        why = "reinforcement learning learns rewards, and no such loss"
    return Losses((first, second), None if why else comparison.target_loss, why_not_equal=why)


def compare_lives(
    comparison: Comparison, models: tuple[Model, Model], target: float | None = None, despite: Collection[str] = ()
) -> list[Lives]:
    """Return the costs of two models at every combination measured for both.

    Args:
        comparison: the comparison of their trainings.
        models: the two models.
        target: the loss up to which costs are counted too, nats, from `losses_of`.
        despite: as for `common_combinations`.

    Raises MetricsError as `common_combinations` does.
    """
    combinations = common_combinations([(model.group, model.made) for model in models], despite)
    ratios = {ratio.metric: ratio for ratio in comparison.ratios}
    judged = {unit: ratios[metric] for unit, metric in _JUDGED.items() if metric in ratios}
    objections = {unit: ratio.objection.why for unit, ratio in judged.items() if ratio.objection}
    carried: dict[Unit, str] = {unit: ratio.carried for unit, ratio in judged.items() if ratio.carried}
    few = min(len(each) for model in models for each in (model.group.records, model.made)) < MIN_REPEATS
    in_turns = comparison.judge.took_turns or TURNS in despite
    why = NOISE_UNKNOWN if few else ONE_BEFORE if _apart(models) else "" if in_turns else NOT_IN_TURNS
    untold = {unit: text for unit in UNITS if (text := objections.get(unit, why))}
    found = [_lives(models, combination, target) for combination in combinations]
    return [replace(each, untold=untold, carried=carried, differences=1 + len(combinations)) for each in found]


def _apart(models: tuple[Model, Model]) -> bool:
    """Return whether the models come from different earlier runs, of which each is a single one."""
    one, other = ([(each.run, each.started_at) for each in model.earlier] for model in models)
    return one != other


def _lives(models: tuple[Model, Model], combination: Combination, target: float | None) -> Lives:
    costs: dict[Unit, tuple[Life, Life]] = {}
    at_loss: dict[Unit, tuple[Life, Life]] = {}
    missing: dict[str, str] = {}
    for unit, way in _WAYS.items():
        try:
            first, second = (
                Life(_training(model, way.training), _serving(model, way.serving, combination)) for model in models
            )
            way.check(models, combination)
        except MetricsError as error:
            missing[unit] = str(error)
            continue
        costs[unit] = first, second
        if target is None:
            continue
        try:
            less = [_training(model, way.training, partial(way.to_loss, target=target)) for model in models]
            at_loss[unit] = Life(less[0], first.token), Life(less[1], second.token)
        except MetricsError as error:
            missing[f"{unit} at equal loss"] = str(error)
    hours = None
    try:
        hours = _training(models[0], training_device_hours), _training(models[1], training_device_hours)
    except MetricsError as error:
        missing["training hours"] = str(error)
    return Lives(combination, costs, missing, hours, at_loss)


def _training(
    model: Model, whole: Callable[[RunRecord], float], last: Callable[[RunRecord], float] | None = None
) -> Amount:
    """Return the cost of all runs that a model took; `last`: that of its last run, None for the whole of it.

    The runs of earlier stages are single ones, which all repeats of the last one share.
    """
    before = math.fsum(whole(record) for record in model.earlier)
    return Amount.mean([before + (last or whole)(record) for record in model.group.records])


def served_token(model: Model, unit: Unit, combination: Combination) -> Amount:
    """Return the cost of one served token. Raises MetricsError: it was not measured, or is in doubt."""
    return _serving(model, _WAYS[unit].serving, combination)


def _serving(model: Model, request: Callable[[GenerationRow, int], float], combination: Combination) -> Amount:
    """Return the cost of one served token."""
    _, batch, new = combination
    rows = _rows(model.made, combination)
    return Amount.mean([request(row, made.devices) / batch / new for row, made in zip(rows, model.made, strict=True)])


def _to_loss(record: RunRecord, target: float) -> Cost:
    if record.branched_after:
        raise MetricsError(f"{record.run}: a branch's cost to a loss is partly its trunk's")
    return cost_to_loss(record, target)


def _energy_to_loss_j(record: RunRecord, target: float) -> float:
    spent_j = _to_loss(record, target).energy_j
    if spent_j is None:
        raise MetricsError(f"{record.run}: the energy until that loss is not known")
    return spent_j


def _hours_to_loss(record: RunRecord, target: float) -> float:
    """Return a run's device hours without those of the training steps after a loss."""
    to_loss = _to_loss(record, target).time_s * record.devices / 3600
    return device_hours(record) - max(training_device_hours(record) - to_loss, 0.0)


def _batch_j(row: GenerationRow, devices: int) -> float:
    """Return the joules of one batch of requests: a prefill, then the decoding steps."""
    del devices  # the energy is that of all of them
    prefill, decode = (_figure(row, f"{phase}_energy_j_per_token") for phase in ("prefill", "decode"))
    return (prefill * row.prompt_tokens + decode * (row.max_new_tokens - 1)) * row.batch


def _batch_hours(row: GenerationRow, devices: int) -> float:
    """Return the device hours of one batch of requests."""
    time_s = _figure(row, "prefill_time_s") + _figure(row, "decode_time_s") * (row.max_new_tokens - 1)
    return time_s * devices / 3600


def _check_energy(models: tuple[Model, Model], combination: Combination) -> None:
    """Raise MetricsError where an energy is in doubt, or of another part of the machine than the others."""
    scopes: dict[str | None, None] = {}
    for model in models:
        records = [*model.earlier, *model.group.records]
        rows = _rows(model.made, combination)
        doubts = [each.energy_doubt for each in records]
        doubts += [phase.energy_doubt for row in rows for phase in row.phases.values()]
        if doubt := next(filter(None, doubts), None):
            raise MetricsError(f"{model.group.name}: {doubt}")
        trained = dict.fromkeys(record.energy_scope for record in records)
        made = dict.fromkeys(row.value("decode_energy_scope") for row in rows if row.value("decode_energy_scope"))
        if made and made != trained:
            raise MetricsError(
                f"{model.group.name}: training has the energy of {_listed(trained)}, generation that of {_listed(made)}"
            )
        scopes |= trained
    if len(scopes) > 1:
        raise MetricsError(f"energy is of different parts of the machine: {' against '.join(map(str, scopes))}")


def _check_devices(models: tuple[Model, Model], combination: Combination) -> None:
    """Raise MetricsError where devices differ, of which each has its price."""
    del combination  # a model is measured on one kind of device
    both: dict[str, None] = {}
    for model in models:
        trained = [each.device_name for each in (*model.earlier, *model.group.records)]
        names = dict.fromkeys((*trained, *(each.device_name for each in model.made)))
        if len(names) > 1:
            raise MetricsError(f"{model.group.name}: {_unlike_hours(names)}")
        both |= names
    if len(both) > 1:
        raise MetricsError(_unlike_hours(both))


def _listed(scopes: Iterable[str | None]) -> str:
    return " and ".join(map(str, scopes))


def _unlike_hours(devices: Iterable[str]) -> str:
    return f"hours of different devices have different prices: {' and '.join(devices)}"


@dataclass(frozen=True)
class _Way:
    """How a life is counted in one unit."""

    check: Callable[[tuple[Model, Model], Combination], None]
    training: Callable[[RunRecord], float]
    to_loss: Callable[..., float]
    serving: Callable[[GenerationRow, int], float]


_WAYS: dict[Unit, _Way] = {
    "J": _Way(_check_energy, training_energy_j, _energy_to_loss_j, _batch_j),
    "device hours": _Way(_check_devices, device_hours, _hours_to_loss, _batch_hours),
}


def _rows(made: Sequence[GenerationRecord], combination: Combination) -> list[GenerationRow]:
    """Return each record's row of the combination. Raises MetricsError if a record lacks it, or if it failed."""
    rows = []
    for record in made:
        row = next((row for row in record.rows if combination_of(row) == combination), None)
        if row is None or row.failure is not None:
            why = "was not measured" if row is None else row.failure
            raise MetricsError(f"{record.run} seed {record.seed}, {text_of(combination)}: {why}")
        rows.append(row)
    return rows


def _figure(row: GenerationRow, name: str) -> float:
    value = row.value(name)
    if value is None:
        raise MetricsError(f"{name}: {row.why(name)}")
    return float(value)
