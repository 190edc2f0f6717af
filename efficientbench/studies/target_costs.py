"""The costs of a study's variants at the target, and of serving them, as far as they are known for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from efficientbench.architecture.variant import known
from efficientbench.basics.cgroup import usable_cores
from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.basics.grouped import grouped
from efficientbench.config.layout import Layout
from efficientbench.costs.model import flops_per_token, kv_cache_bytes_per_token
from efficientbench.metrics.analysis.generation import common_combinations, text_of
from efficientbench.metrics.analysis.life_cost import UNITS, Model, served_token
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.formulas.student import t_quantile_95
from efficientbench.metrics.records.figure import count
from efficientbench.metrics.records.record import RunRecord
from efficientbench.planning.plan import make_plan, with_kernels
from efficientbench.studies.cells import LadderPlan
from efficientbench.studies.effects import DRAWS
from efficientbench.studies.runs import Study, StudyRun, TargetCost
from efficientbench.studies.verdict import Costs
from efficientbench.studies.words import percent
from efficientbench.sweep.estimate import estimate

HOURS, KWH, FLOPS, SERVING = "device-hours", "kWh", "FLOPs", "serving"
CACHE = "cache bytes per token"


@dataclass(frozen=True)
class _Unit:
    """How a variant's cost is read in one unit."""

    value: Callable[[TargetCost], float | None]
    source: Callable[[TargetCost], str]
    """How the cost is known, or why it is not."""
    runs: Callable[[TargetCost], tuple[float, ...]] = lambda cost: ()
    """The figures of single runs whose mean it follows from."""
    served: str = ""
    """The unit in which serving is measured."""
    served_per_unit: float = 1.0
    """Number of that unit in one of this: 3.6e6 J are a kWh."""


_UNITS = {
    HOURS: _Unit(
        lambda cost: None if cost.device_seconds is None else cost.device_seconds / 3600,
        lambda cost: cost.time_source,
        lambda cost: cost.rates,
        "device hours",
    ),
    KWH: _Unit(
        lambda cost: None if cost.joules is None else cost.joules / 3.6e6,
        lambda cost: cost.energy_source,
        lambda cost: cost.energies,
        "J",
        3.6e6,
    ),
    # What was matched differs by a rounding alone, and dominates nothing: it counts only where nothing else is known.
    FLOPS: _Unit(lambda cost: cost.training_flops, lambda cost: "by the model's formulas"),
}


def costs_at_target(plan: LadderPlan, runs: Sequence[StudyRun]) -> dict[str, TargetCost]:
    """Return variant → its costs at the target, by the measured rates of its largest size, else by the plan.

    All are of the devices with most records, of those that have trained every trained variant.
    """
    devices = grouped((run.record.device_name, run.variant) for run in runs if run.record is not None)
    trained = {variant for of in devices.values() for variant in of}
    shared = max(
        (name for name, of in devices.items() if trained <= {*of}), key=lambda name: len(devices[name]), default=None
    )
    measured = [run for run in runs if run.record is not None and run.record.device_name == shared]
    return {variant: _cost(plan, variant, measured) for variant in plan.section.ordered}


def _cost(plan: LadderPlan, variant: str, runs: Sequence[StudyRun]) -> TargetCost:
    config = plan.models[variant, plan.section.target.size].config
    model, training = config.model, config.training
    per_token = known(lambda: flops_per_token(model, training.seq_len).training)
    flops = None if per_token is None else per_token * plan.target.tokens
    cache = known(lambda: kv_cache_bytes_per_token(model, training.dtype))
    if flops is None:
        why = f"{variant} declares no formula for its FLOPs"
        return TargetCost(None, None, why, False, None, why, cache)
    measured = _largest(runs, variant)
    rates = [
        each.tokens_per_s * each.flops_per_token / each.devices
        for each in measured
        if each.tokens_per_s and each.flops_per_token
    ]
    energies = [
        each.energy_j_per_token / each.flops_per_token
        for each in measured
        if each.energy_j_per_token is not None and each.flops_per_token
    ]
    size = measured[0].size if measured else ""
    joules = flops * sum(energies) / len(energies) if energies else None
    lacking = {each.unavailable.get("energy_j_per_token") for each in measured} - {None}
    of_energy = (
        f"mean measured J per FLOP of {size}"
        if energies
        else "; ".join(map(str, lacking)) or "no device has records of all variants with energy"
    )
    if rates:
        seconds: float | None = flops * len(rates) / sum(rates)
        of_time = f"mean measured rate of {size} × FLOPs"
    else:
        seconds, of_time = _planned_seconds(plan, variant)
    return TargetCost(flops, seconds, of_time, bool(rates), joules, of_energy, cache, tuple(rates), tuple(energies))


def _largest(runs: Sequence[StudyRun], variant: str) -> list[RunRecord]:
    """Return the records of a variant's largest size."""
    own = [run for run in runs if run.variant == variant]
    size = max(own, key=lambda run: run.cell.parameters).cell.size if own else ""
    return [run.record for run in own if run.cell.size == size and run.record is not None]


def _planned_seconds(plan: LadderPlan, variant: str) -> tuple[float | None, str]:
    machine, config = plan.machine, plan.models[variant, plan.section.target.size].config
    if not machine.name:
        return None, "no record of its largest size has a rate"
    config = config.changed("training", tokens=int(plan.target.tokens), steps=None, epochs=None)
    config = with_kernels(config, machine)
    try:
        layout = Layout.of(config, machine.count(), machine.nodes, oversubscribe=True)
        found = estimate(make_plan(config, layout, machine.runtime_bytes), machine, [], usable_cores())
    except ConfigError as error:
        return None, str(error)
    devices = 1 if machine.shared else layout.world_size
    return (None if found.time_s is None else found.time_s * devices), found.time_source


def costs_of(study: Study, variants: Sequence[str]) -> tuple[Costs, dict[str, str]]:
    """Return the costs of some variants in every unit in which all of them have one, and unit → how it is known.

    The text of a unit that is not known says why.
    """
    found = [study.costs[name] for name in variants]
    generated = _generated(study, variants)
    serving, how = _serving(generated)
    training: dict[str, np.ndarray] = {}
    lives: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    told: dict[str, str] = {}
    for name, unit in _UNITS.items():
        if name == FLOPS and training:
            break
        values = [unit.value(cost) for cost in found]
        unknown = [cost for cost, value in zip(found, values, strict=True) if value is None]
        told[name] = ("n/a: " if unknown else "") + "; ".join(dict.fromkeys(map(unit.source, unknown or found)))
        if unknown:
            continue
        training[name], noise = _drawn(np.array(values, float), [unit.runs(cost) for cost in found])
        told[name] += noise
        if study.served_tokens is not None and unit.served in serving:
            after = study.served_tokens * serving[unit.served] * _growth(study, generated) / unit.served_per_unit
            life = f"{name} with {count(study.served_tokens)} served tokens"
            lives[life] = training[name], after
            told[life] = "serving by its measurement × FLOPs of a token, whose noise is not counted"
    caches = [cost.cache_bytes_per_token for cost in found]
    lacking = [name for name, cache in zip(variants, caches, strict=True) if cache is None]
    if lacking:
        told[CACHE] = f"n/a: no formula of {', '.join(lacking)}"
    else:
        # 0 where a further token keeps nothing, as behind a window or in a recurrent state.
        serving[CACHE] = np.array(caches, float)
    return Costs(training, serving, lives), told | how


def _drawn(values: np.ndarray, runs: Sequence[Sequence[float]]) -> tuple[np.ndarray, str]:
    """Return draws of the variants' costs [draws, variants], and their noise in words; without noise [variants], "".

    Each is the mean of its runs, whose logarithms are taken for normal with one variance for all variants.
    """
    logs = [np.log(each) for each in runs]
    degrees = sum(max(len(each) - 1, 0) for each in logs)
    if not all(map(len, logs)) or degrees < 1:
        return values, ""
    variance = sum(float(((each - each.mean()) ** 2).sum()) for each in logs) / degrees
    errors = np.sqrt([variance / len(each) for each in logs])
    margin = t_quantile_95(degrees) * float(errors.max())
    chance = np.random.default_rng(1)
    draws = values * np.exp(errors * chance.standard_t(degrees, (DRAWS, len(values))))
    return draws, f", ±{percent(math.expm1(margin), '.1f')} (95 %)"


def _generated(study: Study, variants: Sequence[str]) -> list[list[StudyRun]]:
    """Return each variant's runs of the largest size at which generation was measured of all; none without one."""
    measured: dict[float, dict[str, list[StudyRun]]] = {}
    for run in study.runs:
        if run.generation is not None and run.state == "complete":
            measured.setdefault(run.cell.parameters, {}).setdefault(run.variant, []).append(run)
    sizes = [size for size, of_variants in measured.items() if of_variants.keys() >= set(variants)]
    return [measured[max(sizes)][name] for name in variants] if sizes else []


def _growth(study: Study, generated: Sequence[Sequence[StudyRun]]) -> np.ndarray:
    """Return [variants]: the FLOPs of a token at the target over those at the size that generated."""
    ratios = []
    for run, *_ in generated:
        flops = study.costs[run.variant].training_flops
        assert run.record is not None
        assert run.record.flops_per_token is not None
        assert flops is not None
        ratios.append(flops / study.target.tokens / run.record.flops_per_token)
    return np.array(ratios)


def _serving(generated: Sequence[Sequence[StudyRun]]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the costs of a served token in each unit, and how they are known."""
    if not generated:
        return {}, {SERVING: "n/a: generation was not measured of all variants at one size (--generate)"}
    models = [_model(runs) for runs in generated]
    where = f"measured at {generated[0][0].cell.size}"
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
