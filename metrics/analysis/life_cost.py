"""Cost of a life: what training a model and serving it takes, and from how many served tokens one overtakes another.

A served token is a new token of a static batch in the engine that the records of generation name. It carries its share
of the prompt: a request of P prompt tokens and n new ones takes one prefill and n - 1 decoding steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from efficientbench.metrics.analysis.overtaking import Amount, Life
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.ratio import Estimate
from efficientbench.metrics.records.generation import GENERATION_NAME, GenerationRecord, GenerationRow, load_generations
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.student import t_quantile_95

Unit = Literal["J", "device hours"]
MANY = 10_000
"""Degrees of freedom of an interval that does not say how many values told it: its quantile is about the normal one."""

Combination = tuple[int, int, int]
"""Tokens of a prompt, batch, new tokens of each sequence."""


@dataclass(frozen=True)
class Lives:
    """Both models' costs at one combination of prompt, batch and new tokens."""

    combination: Combination
    costs: dict[Unit, tuple[Life, Life]]
    missing: dict[Unit, str]
    """Unit of the costs that are not known → why."""


def compare_lives(
    sides: Sequence[tuple[Group, Sequence[GenerationRecord]]], despite: Collection[str] = ()
) -> list[Lives]:
    """Return the costs of two models at every combination that was measured of both.

    Args:
        sides: of each model the repeats of its training, and its records of generation.
        despite: conditions of the generation that may differ: device, dtype, engine, weights, formulas.

    Raises:
        MetricsError: they were measured under different conditions, generation was measured of another model than was
            trained, or no combination of both.
    """
    generations = [made for _, made in sides]
    _check_alike(generations, despite)
    _check_models(sides)
    measured = [
        {_combination(row) for record in made for row in record.rows if row.failure is None} for made in generations
    ]
    common = sorted(measured[0] & measured[1])
    if not common:
        listed = " against ".join(", ".join(map(_text, sorted(each))) or "none" for each in measured)
        raise MetricsError(f"no combination of prompt, batch and new tokens was measured of both: {listed}")
    return [_lives(sides, combination) for combination in common]


def load_generated(folder: Path) -> list[GenerationRecord]:
    """Return the records of generation below the folder of a run or of its repeats.

    Raises MetricsError: there is none, or one is damaged.
    """
    records, damaged = load_generations(folder)
    if damaged:
        raise MetricsError("; ".join(damaged))
    if not records:
        raise MetricsError(
            f"{folder}: holds no {GENERATION_NAME}: efficientbench generate {folder} --measure writes it"
        )
    return records


_CONDITIONS: dict[str, Callable[[GenerationRecord], str]] = {
    "device": lambda record: f"{record.devices} × {record.device_name}",
    "dtype": lambda record: record.dtype,
    "engine": lambda record: record.engine,
    # They decide which experts get tokens, and which blocks NSA reads.
    "weights": lambda record: "random" if record.weights == "random" else "a checkpoint's",
    "formulas": lambda record: record.formula_id,
}
OF_GENERATION = ("engine", "weights")
"""Conditions that training has not."""


def _check_alike(generations: Sequence[Sequence[GenerationRecord]], despite: Collection[str]) -> None:
    for name, read in _CONDITIONS.items():
        texts = list(dict.fromkeys(read(record) for made in generations for record in made))
        if len(texts) > 1 and name not in despite:
            raise MetricsError(
                f"generation was measured under different conditions: {name}: {' against '.join(texts)}. To compare "
                f"all the same: --despite {name}"
            )


def _check_models(sides: Sequence[tuple[Group, Sequence[GenerationRecord]]]) -> None:
    for group, made in sides:
        if any(record.config.get("model") != group.first.config.get("model") for record in made):
            raise MetricsError(
                f"{group.name}: generation was measured of another model than was trained: measure it again by "
                "efficientbench generate FOLDER --measure"
            )


def _combination(row: GenerationRow) -> Combination:
    return row.prompt_tokens, row.batch, row.max_new_tokens


def _text(combination: Combination) -> str:
    return "prompt {:,}, batch {:,}, new {:,}".format(*combination)


def _lives(sides: Sequence[tuple[Group, Sequence[GenerationRecord]]], combination: Combination) -> Lives:
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
        row = next((row for row in record.rows if _combination(row) == combination), None)
        if row is None or row.failure is not None:
            why = "was not measured" if row is None else row.failure
            raise MetricsError(f"{record.run} seed {record.seed}, {_text(combination)}: {why}")
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
