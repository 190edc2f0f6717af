"""Estimate time and energy of a run, from records of the same device, else from stated assumptions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from efficientbench.architecture.variant import UndeclaredError
from efficientbench.basics.errors import MetricsError
from efficientbench.config.training import Recompute
from efficientbench.costs.matrices import muon_flops
from efficientbench.costs.model import flops_per_token
from efficientbench.metrics.analysis.conditions import optimizer_of
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.sensors.hardware import peak_flops
from efficientbench.planning.basis import basis
from efficientbench.planning.bill import not_estimated, share_held
from efficientbench.planning.calibration import is_device
from efficientbench.planning.plan import Plan
from efficientbench.planning.step_time import project
from efficientbench.sweep.machine import Machine

ASSUMED_CORE_FLOPS = 20e9
"""FLOP/s of one CPU core in float32, in runs of small models: far below its peak."""
ASSUMED_START_S = 5.0
"""From a run's call to its first step on a CPU: measured by tests/benchmarks/start_time.py, 4.9 s of a core."""


@dataclass(frozen=True)
class Estimate:
    """Time and energy of one run; None where there is no estimate."""

    time_s: float | None
    time_source: str
    """How the time was estimated, or why there is no estimate."""
    energy_j: float | None
    energy_source: str
    """How the energy was estimated, or why there is no estimate."""
    bounded: bool = field(default=True, kw_only=True)
    """Whether the device's TDP bounds the energy that has no estimate."""
    around_s: float = 0.0
    """The part of `time_s` that is no step's: start, validation, checkpoints; 0 where it is not estimated."""


def estimate(plan: Plan, machine: Machine, records: Sequence[RunRecord], cores: float) -> Estimate:
    """Return the estimate of one run on a machine, from its start to its end.

    Args:
        plan: the run's plan.
        machine: the machine that runs it.
        records: earlier runs' records, of which those of the same device are used.
        cores: number of the host's cores that the run has, used where the device is a CPU.
    """
    reason = not_estimated(plan)
    if reason is not None:
        return Estimate(None, reason, None, reason)
    same = _same(records, machine.name)
    try:
        training_s, around_s, source = _time_s(plan, machine, same, cores)
        share = share_held(plan, training_s)
        time_s = None if training_s is None else share * training_s + around_s
        energy_j, energy_source = _energy_j(plan, machine.name, same)
        cut = f", of which {plan.budget.time_limit_s:g} s are measured at most" if share < 1 else ""
        return Estimate(time_s, source + cut, None if energy_j is None else share * energy_j, energy_source, around_s)
    except UndeclaredError as error:
        return Estimate(None, str(error), None, str(error))


def measured_energy_j(plan: Plan, device: str, records: Sequence[RunRecord]) -> tuple[float | None, str]:
    """Return the energy of a run on a device by the records of others there, with its source; or None and why."""
    return _energy_j(plan, device, _same(records, device))


def _same(records: Sequence[RunRecord], device: str) -> list[RunRecord]:
    """Return the records of completed runs on a device; the duration of an RL run includes its sampling."""
    found = [each for each in records if is_device(each.device_name, device) and each.status == "completed"]
    return [each for each in found if each.tokens_per_s and each.flops_per_token and each.reinforcement is None]


def _time_s(plan: Plan, machine: Machine, same: Sequence[RunRecord], cores: float) -> tuple[float | None, float, str]:
    """Return the time of all steps and of the rest, and where they are from."""
    flops: float = plan.flops.training_hardware * plan.budget.tokens
    devices = 1 if machine.shared else plan.layout.world_size
    alike = [each for each in same if each.dtype == plan.config.training.dtype]
    by_optimizer = [each for each in alike if optimizer_of(each) == plan.config.training.optimizer]
    if not by_optimizer and plan.config.training.optimizer == "muon":
        # The records' rates have no products of its updates.
        flops += muon_flops(plan.config, plan.layout) * plan.layout.world_size * plan.budget.steps
    if alike:
        nearest = min(by_optimizer or alike, key=lambda each: _distance(each, plan))
        rate = (nearest.tokens_per_s or 0.0) * _hardware_flops(nearest, plan) / nearest.devices
        around_s = statistics.median(_around_s(each) for each in alike)
        source = f"FLOP/s per device of the record nearest in size, start and evaluation as in {len(alike)} records"
        return flops / (rate * devices), around_s, source
    time_s, source = _projected_s(plan, machine.name)
    if time_s is None and machine.shared:
        # Also where a calibration lacks what the run's ranks send.
        time_s = flops / (ASSUMED_CORE_FLOPS * cores)
        source = (
            f"{ASSUMED_CORE_FLOPS / 1e9:.0f} GFLOP/s a core assumed ({cores:g} core{'' if cores == 1 else 's'}), and "
            f"{ASSUMED_START_S:g} s to start"
        )
        return time_s, ASSUMED_START_S, source
    return time_s, 0.0, source


def _projected_s(plan: Plan, device: str) -> tuple[float | None, str]:
    """Project the time as `plan --world` does."""
    dtype = plan.config.training.dtype
    try:
        found = basis(device, plan.config, plan.layout.world_size)
    except MetricsError as error:
        peak, reason = peak_flops(device, dtype)
        return None, str(error) if peak is not None else reason
    rates = found.rates
    if plan.layout.nodes > 1 and rates.between_nodes_bytes_s is None:
        return None, f"what the network of a node of {rates.name} carries is not in the table of devices"
    reached = found.reached
    source = f"projected from the rates of {rates.name}, {reached.share}, training alone; {reached.time_range}"
    return project(plan.config, plan.layout, rates, found.reached.efficiency).step_time_s * plan.budget.steps, source


def _energy_j(plan: Plan, device: str, same: Sequence[RunRecord]) -> tuple[float | None, str]:
    measured = [each for each in same if each.energy_j_per_token is not None]
    if not measured:
        return None, f"no record in this folder has the energy of a run on {device}"
    nearest = min(measured, key=lambda each: _distance(each, plan))
    per_flop = (nearest.energy_j_per_token or 0.0) / _hardware_flops(nearest, plan)
    source = f"J/FLOP of the record nearest in size, {nearest.energy_scope}, training alone"
    return per_flop * plan.flops.training_hardware * plan.budget.tokens, source


def _distance(record: RunRecord, plan: Plan) -> float:
    """Return the ratio of the two FLOPs per token, the larger over the smaller."""
    ratio = (record.flops_per_token or 0.0) / plan.flops.training
    return max(ratio, 1 / ratio)


def _hardware_flops(record: RunRecord, plan: Plan) -> float:
    """Return the FLOPs of a token of the record's run, recomputation included.

    The record has them without recomputation, whose share is computed for the plan's model.
    """
    training = record.config.get("training", {})
    recompute: Recompute = training.get("recompute", "none") if isinstance(training, dict) else "none"
    flops = flops_per_token(plan.config.model, plan.config.training.seq_len, recompute)
    return (record.flops_per_token or 0.0) * flops.training_hardware / flops.training


def _around_s(record: RunRecord) -> float:
    """Return the time that a run took besides its steps: start, validation, checkpoints."""
    config = record.config.get("measurement", {})
    warmup = config.get("warmup_steps", 0) if isinstance(config, dict) else 0
    return max(record.duration_s - (record.al_s or 0.0) * (record.steps_measured + warmup), 0.0)
