"""Cost of a life: what training a model and serving it takes, and from how many served tokens one overtakes another.

A served token is a new token of a static batch in the engine that the records of generation name. It carries its share
of the prompt: a request of P prompt tokens and n new ones takes one prefill and n - 1 decoding steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from efficientbench.metrics.analysis.generation_sides import (
    Combination,
    Generating,
    combination_of,
    common_combinations,
    text_of,
)
from efficientbench.metrics.analysis.overtaking import Amount, Life
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.ratio import Estimate
from efficientbench.metrics.records.generation import GenerationRecord, GenerationRow
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.student import t_quantile_95

Unit = Literal["J", "device hours"]
MANY = 10_000
"""Degrees of freedom of an interval of an unknown number of values: its quantile is about the normal one."""


@dataclass(frozen=True)
class Lives:
    """Both models' costs at one combination of prompt, batch and new tokens."""

    combination: Combination
    costs: dict[Unit, tuple[Life, Life]]
    missing: dict[Unit, str]
    """Unit of the costs that are not known → why."""


def compare_lives(sides: Sequence[Generating], despite: Collection[str] = ()) -> list[Lives]:
    """Return the costs of two models at every combination that was measured of both.

    Raises MetricsError: they cannot be compared, as of `common_combinations`, which has the arguments.
    """
    return [_lives(sides, combination) for combination in common_combinations(sides, despite)]


def _lives(sides: Sequence[Generating], combination: Combination) -> Lives:
    costs: dict[Unit, tuple[Life, Life]] = {}
    missing: dict[Unit, str] = {}
    ways: tuple[tuple[Unit, Callable[[Group, Sequence[GenerationRecord], Combination], Life]], ...]
    ways = (("J", _energy), ("device hours", _hours))
    for unit, cost in ways:
        try:
            first, second = (cost(group, made, combination) for group, made in sides)
            costs[unit] = first, second
        except MetricsError as error:
            missing[unit] = str(error)
    if "J" in costs:
        scopes = list(dict.fromkeys(group.first.energy_scope for group, _ in sides))
        if len(scopes) > 1:
            del costs["J"]
            missing["J"] = f"energy is of different parts of the machine: {' against '.join(map(str, scopes))}"
    devices = list(dict.fromkeys(group.first.device_name for group, _ in sides))
    if "device hours" in costs and len(devices) > 1:
        del costs["device hours"]
        missing["device hours"] = _unlike_hours(devices)
    return Lives(combination, costs, missing)


def _energy(group: Group, made: Sequence[GenerationRecord], combination: Combination) -> Life:
    """Return the joules of a life."""
    rows = _rows(made, combination)
    doubts = [each.energy_doubt for each in group.records]
    doubts += [phase.energy_doubt for row in rows for phase in row.phases.values()]
    doubt = next(filter(None, doubts), None)
    if doubt is not None:
        raise MetricsError(f"{group.name}: {doubt}")
    scope = group.first.energy_scope
    other = next((row for row in rows if row.value("decode_energy_scope") != scope), None)
    per_token = [_joules(row) for row in rows]
    training = [_known(record, "energy_j_per_token") * _known(record, "tokens_trained") for record in group.records]
    if other is not None:
        raise MetricsError(
            f"{group.name}: training has the energy of {scope}, generation that of {other.value('decode_energy_scope')}"
        )
    return Life(Amount.mean(training), Amount.mean(per_token))


def _joules(row: GenerationRow) -> float:
    prefill, decode = (_figure(row, f"{phase}_energy_j_per_token") for phase in ("prefill", "decode"))
    return (prefill * row.prompt_tokens + decode * (row.max_new_tokens - 1)) / row.max_new_tokens


def _hours(group: Group, made: Sequence[GenerationRecord], combination: Combination) -> Life:
    """Return the hours of devices of a life.

    A single run's noise is that of its steps, a single measurement's that of its requests: the noise between runs is
    not in them.
    """
    names = dict.fromkeys((*(each.device_name for each in group.records), *(each.device_name for each in made)))
    if len(names) > 1:
        raise MetricsError(f"{group.name}: {_unlike_hours(names)}")
    hours = [
        _known(record, "tokens_trained") / _known(record, "tokens_per_s") * record.devices / 3600
        for record in group.records
    ]
    training = Amount.mean(hours)
    first = group.first
    if len(hours) == 1 and first.al_s and first.al_s_ci_low is not None and first.al_s_ci_high is not None:
        margin = (first.al_s_ci_high - first.al_s_ci_low) / 2 / first.al_s * hours[0]
        training = Amount(hours[0], Estimate((margin / t_quantile_95(MANY)) ** 2, MANY))
    rows = _rows(made, combination)
    requests = [_request(row).times(record.devices / 3600) for row, record in zip(rows, made, strict=True)]
    request = requests[0] if len(requests) == 1 else Amount.mean([each.value for each in requests])
    return Life(training, request.times(1 / (combination[1] * combination[2])))


def _unlike_hours(devices: Iterable[str]) -> str:
    return f"hours of different devices have different prices: {' and '.join(devices)}"


def _request(row: GenerationRow) -> Amount:
    """Return the seconds of a batch's request: a prefill, and the decoding steps behind it."""
    return _phase(row, "prefill") + _phase(row, "decode").times(row.max_new_tokens - 1)


def _phase(row: GenerationRow, name: str) -> Amount:
    mean, low, high = (row.value(f"{name}_time_s{end}") for end in ("", "_ci_low", "_ci_high"))
    repeats = row.value(f"{name}_repeats")
    if mean is None or low is None or high is None or repeats < 2:
        return Amount(_figure(row, f"{name}_time_s"))
    return Amount(mean, Estimate(((high - low) / 2 / t_quantile_95(repeats - 1)) ** 2, repeats - 1))


def _rows(made: Sequence[GenerationRecord], combination: Combination) -> list[GenerationRow]:
    """Return of each record the row of the combination."""
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


def _known(record: RunRecord, name: str) -> float:
    value = getattr(record, name)
    if not value:
        raise MetricsError(f"{record.run}: {name}: {record.unavailable.get(name, 'it is 0')}")
    return float(value)
