"""The cost of a life: training a model and serving it, and from how many served tokens one model overtakes another.

A served token is a new token of a static batch in the engine that the records of generation name. It carries its share
of the prompt: a request of P prompt tokens and n new ones takes one prefill and n - 1 decoding steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.generation import (
    Combination,
    Generating,
    combination_of,
    common_combinations,
    text_of,
)
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.formulas.definitions import standard_deviation
from efficientbench.metrics.formulas.ratio import Estimate
from efficientbench.metrics.formulas.student import t_quantile_95
from efficientbench.metrics.records.generation.generation import GenerationRecord, GenerationRow
from efficientbench.metrics.records.record import RunRecord


@dataclass(frozen=True)
class Amount:
    """A cost, with its noise where that is known."""

    value: float
    noise: Estimate | None = None
    """The cost's variance; None if not known."""

    def __add__(self, other: Amount) -> Amount:
        noise = None if self.noise is None or other.noise is None else self.noise + other.noise
        return Amount(self.value + other.value, noise)

    def times(self, factor: float) -> Amount:
        """Return the cost times a factor."""
        noise = self.noise and Estimate(self.noise.variance * factor**2, self.noise.degrees)
        return Amount(self.value * factor, noise)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval by Student's t; None if the noise is not known."""
        if self.noise is None:
            return None
        return self.value - self.noise.margin, self.value + self.noise.margin

    @classmethod
    def mean(cls, values: Sequence[float]) -> Amount:
        """Return the mean of independent values, with their noise where there are two or more."""
        deviation = standard_deviation(values)
        noise = None if deviation is None else Estimate(deviation**2 / len(values), len(values) - 1)
        return cls(math.fsum(values) / len(values), noise)


@dataclass(frozen=True)
class Life:
    """The costs of one model, in one unit."""

    training: Amount
    token: Amount
    """Cost of one served token."""

    def times(self, factor: float) -> Life:
        """Return the costs in another unit, `factor` of which make one of this unit."""
        return Life(self.training.times(factor), self.token.times(factor))

    def after(self, served_tokens: float) -> Amount:
        """Return the cost of training and of that many served tokens."""
        return self.training + self.token.times(served_tokens)


@dataclass(frozen=True)
class Overtaking:
    """Where the costs of two lives meet."""

    tokens: float | None
    """Served tokens from which the other model costs less; None if one always costs less, or both cost the same."""
    low: float | None
    """Lower end of the tokens' 95 % interval; None, like `high`, if that is not known or `tokens` is None."""
    high: float | None
    """Upper end; infinite where the difference in serving is within its noise."""
    before: int | None
    """The model, 0 or 1, that costs less with fewer served tokens; None if both cost the same."""


def overtaking(first: Life, second: Life) -> Overtaking:
    """Return from how many served tokens the model that costs more to train costs less in all.

    The number is the difference in training over the difference in one served token. Its interval is Fieller's (1954):
    all quotients that the noise of both differences allows. It has no upper end where serving may cost the same.
    """
    dearer = _difference(second.training, first.training)
    saved = _difference(first.token, second.token)
    if dearer.value == 0 or saved.value == 0 or dearer.value * saved.value < 0:
        least = [dearer.value, -saved.value]
        decided = next((value for value in least if value), None)
        return Overtaking(None, None, None, None if decided is None else 0 if decided > 0 else 1)
    before = 0 if dearer.value > 0 else 1
    tokens = dearer.value / saved.value
    if dearer.noise is None or saved.noise is None:
        return Overtaking(tokens, None, None, before)
    # Fieller's t · standard error is the margin here, since each difference has its own degrees of freedom.
    a, b = dearer.value**2 - dearer.noise.margin**2, saved.value**2 - saved.noise.margin**2
    middle = dearer.value * saved.value
    root = math.sqrt(max(middle**2 - a * b, 0.0))
    if b <= 0:
        low = a / (middle + root) if a > 0 else 0.0
        return Overtaking(tokens, low, math.inf, before)
    return Overtaking(tokens, max((middle - root) / b, 0.0), (middle + root) / b, before)


def _difference(one: Amount, other: Amount) -> Amount:
    return one + other.times(-1)


Unit = Literal["J", "device hours"]
MANY = 10_000
"""Degrees of freedom for an interval over an unknown number of values: Student's quantile is about the normal one."""


@dataclass(frozen=True)
class Lives:
    """Both models' costs at one combination of prompt, batch and new tokens."""

    combination: Combination
    costs: dict[Unit, tuple[Life, Life]]
    missing: dict[Unit, str]
    """Unit in which the costs are not known → the reason."""


def compare_lives(sides: Sequence[Generating], despite: Collection[str] = ()) -> list[Lives]:
    """Return the costs of two models at every combination measured for both.

    Arguments and errors are those of `common_combinations`.
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
    """Return the costs of one model in joules."""
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
    """Return the costs of one model in device hours.

    The noise of a single run is that of its steps; the noise of a single measurement is that of its requests. Neither
    contains the noise between runs.
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
    """Return the seconds of one batch of requests: a prefill, then the decoding steps."""
    return _phase(row, "prefill") + _phase(row, "decode").times(row.max_new_tokens - 1)


def _phase(row: GenerationRow, name: str) -> Amount:
    mean, low, high = (row.value(f"{name}_time_s{end}") for end in ("", "_ci_low", "_ci_high"))
    repeats = row.value(f"{name}_repeats")
    if mean is None or low is None or high is None or repeats < 2:
        return Amount(_figure(row, f"{name}_time_s"))
    return Amount(mean, Estimate(((high - low) / 2 / t_quantile_95(repeats - 1)) ** 2, repeats - 1))


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


def _known(record: RunRecord, name: str) -> float:
    value = getattr(record, name)
    if not value:
        raise MetricsError(f"{record.run}: {name}: {record.unavailable.get(name, 'it is 0')}")
    return float(value)
