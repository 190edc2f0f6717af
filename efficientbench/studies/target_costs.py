"""The costs of a study's variants at the target, and of serving them, as far as they are known for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.generation import common_combinations, text_of
from efficientbench.metrics.analysis.life_cost import UNITS, Model, served_token
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.studies.runs import Study, StudyRun, TargetCost
from efficientbench.studies.verdict import Costs

HOURS, KWH, FLOPS, SERVING = "device-hours", "kWh", "FLOPs", "serving"
CACHE = "cache bytes per token"
_Read = Callable[[TargetCost], float | None]
_READ: Mapping[str, tuple[_Read, Callable[[TargetCost], str]]] = {
    HOURS: (
        lambda cost: None if cost.device_seconds is None else cost.device_seconds / 3600,
        lambda cost: cost.time_source,
    ),
    KWH: (lambda cost: None if cost.joules is None else cost.joules / 3.6e6, lambda cost: cost.energy_source),
    # What was matched differs by a rounding alone, and dominates nothing: it counts only where nothing else is known.
    FLOPS: (lambda cost: cost.training_flops, lambda cost: "by the model's formulas"),
}
"""Unit → a variant's cost, and how it is known or why it is not."""


def costs_of(study: Study, variants: Sequence[str]) -> tuple[Costs, dict[str, str]]:
    """Return the costs of some variants in every unit in which all of them have one, and unit → how it is known.

    The text of a unit that is not known says why.
    """
    found = [study.costs[name] for name in variants]
    training: dict[str, np.ndarray] = {}
    told: dict[str, str] = {}
    for unit, (read, source) in _READ.items():
        if unit == FLOPS and training:
            break
        values = [read(cost) for cost in found]
        lacking = [cost for cost, value in zip(found, values, strict=True) if value is None]
        if not lacking:
            training[unit] = np.array(values, float)
        told[unit] = ("n/a: " if lacking else "") + "; ".join(dict.fromkeys(map(source, lacking or found)))
    serving, how = _serving(study, variants)
    caches = [cost.cache_bytes_per_token for cost in found]
    if all(caches):
        serving[CACHE] = np.array(caches, float)
    return Costs(training, serving), told | how


def _serving(study: Study, variants: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the costs of a served token of the largest size for which generation was measured of all variants."""
    measured: dict[float, dict[str, list[StudyRun]]] = {}
    for run in study.runs:
        if run.generation is not None and run.state == "complete":
            measured.setdefault(run.cell.parameters, {}).setdefault(run.variant, []).append(run)
    sizes = [size for size, of_variants in measured.items() if of_variants.keys() >= set(variants)]
    if not sizes:
        return {}, {SERVING: "n/a: generation was not measured of all variants at one size (--generate)"}
    runs = measured[max(sizes)]
    models = [_model(runs[name]) for name in variants]
    where = f"measured at {runs[variants[0]][0].cell.size}"
    try:
        baseline, *others = [(model.group, model.made) for model in models]
        common = set.intersection(*(set(common_combinations([baseline, each])) for each in others))
    except MetricsError as error:
        return {}, {SERVING: f"n/a: {error}"}
    if not common:
        return {}, {SERVING: "n/a: no combination of prompt, batch and new tokens was measured of all variants"}
    costs: dict[str, np.ndarray] = {}
    told = [f"{where}, {text_of(min(common))}"]
    for unit in UNITS:
        try:
            costs[unit] = np.array([served_token(model, unit, min(common)).value for model in models])
        except MetricsError as error:
            told.append(f"n/a {unit}: {error}")
    return costs, {SERVING: "; ".join(told)}


def _model(runs: Sequence[StudyRun]) -> Model:
    records = [run.record for run in runs if run.record is not None]
    return Model(Group(tuple(records)), [run.generation for run in runs if run.generation is not None])
