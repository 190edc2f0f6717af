"""What is on disk of a study's runs: their records, or why there is none, and what follows for the costs."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.architecture.variant import known
from efficientbench.basics.cgroup import usable_cores
from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.costs.model import flops_per_token, kv_cache_bytes_per_token
from efficientbench.launchers.processes.failure import read_failure
from efficientbench.metrics.records.generation.generation import generation_of
from efficientbench.metrics.records.record import RunRecord
from efficientbench.planning.plan import make_plan, with_kernels
from efficientbench.studies.cells import LadderPlan
from efficientbench.studies.run_record import record_of
from efficientbench.studies.runs import MatchLeft, StudyRun, TargetCost
from efficientbench.studies.trunks import Planned
from efficientbench.sweep.estimate import estimate


def study_run(run: Planned, rate: float | None) -> StudyRun:
    """Return a run of the plan as it is on disk; `rate`: its learning rate, None where that is not known yet."""
    task = run.task
    where = run.variant, run.cell, run.seed, task.folder.path
    record, reason = record_of(task, any_rate=rate is None)
    if record is not None:
        trained = record.section("training").get("learning_rate")
        told = record.speed_only_reason
        if told is not None:
            return StudyRun(*where, "speed only", trained, record, told)
        if record.validation_loss is None:
            return StudyRun(*where, "failed", trained, record, record.unavailable.get("validation_loss"))
        return StudyRun(*where, "complete", trained, record, None, generation_of(task.folder.path))
    failure = task.refused or read_failure(task.folder.failure)
    if failure is not None and failure.kind != "stopped":
        return StudyRun(*where, "failed", rate, None, f"{failure.kind.replace('_', ' ')}: {failure.reason}")
    return StudyRun(*where, "missing", rate, None, reason or "not trained yet")


def matching(plan: LadderPlan) -> dict[tuple[str, str], MatchLeft]:
    """Return (variant, size) → what matching came to; empty without a match."""
    return {
        pair: MatchLeft(model.config.model.ffn_hidden_size, plan.widths[pair], model.config.match_left)
        for pair, model in plan.models.items()
        if model.config.match_left is not None
    }


def costs_at_target(plan: LadderPlan, runs: Sequence[StudyRun]) -> dict[str, TargetCost]:
    """Return variant → its costs at the target, by the measured rates of its largest size, else by the plan.

    All are of the devices with most records, of those that have trained every trained variant.
    """
    devices: dict[str | None, list[str]] = {}
    for run in runs:
        if run.record is not None:
            devices.setdefault(run.record.device_name, []).append(run.variant)
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
        return TargetCost(flops, seconds, f"mean measured rate of {size} × FLOPs", True, joules, of_energy, cache)
    seconds, of_time = _planned_seconds(plan, variant)
    return TargetCost(flops, seconds, of_time, False, joules, of_energy, cache)


def _largest(runs: Sequence[StudyRun], variant: str) -> list[RunRecord]:
    """Return the records of a variant's largest size."""
    own = [run for run in runs if run.variant == variant]
    size = max(own, key=lambda run: run.cell.parameters).cell.size if own else ""
    return [run.record for run in own if run.cell.size == size and run.record is not None]


def _planned_seconds(plan: LadderPlan, variant: str) -> tuple[float | None, str]:
    machine, config = plan.machine, plan.models[variant, plan.section.target.size].config
    if not machine.name:
        return None, "no record of its largest size has a rate"
    training = config.training.model_copy(update={"tokens": int(plan.target.tokens), "steps": None, "epochs": None})
    config = with_kernels(config.model_copy(update={"training": training}), machine)
    try:
        layout = Layout.of(config, machine.count(), machine.nodes, oversubscribe=True)
        found = estimate(make_plan(config, layout, machine.runtime_bytes), machine, [], usable_cores())
    except ConfigError as error:
        return None, str(error)
    devices = 1 if machine.shared else layout.world_size
    return (None if found.time_s is None else found.time_s * devices), found.time_source
