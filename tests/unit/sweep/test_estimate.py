"""Estimates of a sweep: from records of the same device, else by stated assumptions, else none."""

from __future__ import annotations

import pytest
from support.metrics_parts import make_record

from efficientbench.config.load import resolve
from efficientbench.costs.matrices import muon_flops
from efficientbench.metrics.records.record_parts import Reinforcement
from efficientbench.metrics.sensors.hardware import device_rates
from efficientbench.planning.efficiency import reached
from efficientbench.planning.plan import Plan, plan_anywhere
from efficientbench.planning.step_time import project
from efficientbench.sweep.estimate import ASSUMED_CORE_FLOPS, ASSUMED_START_S, estimate
from efficientbench.sweep.machine import Machine


def machine(name: str, memory_bytes: int | None) -> Machine:
    return Machine("any", name, ("0",), memory_bytes, 0, None)


def plan() -> Plan:
    return plan_anywhere(resolve("gqa_0.5B", True))


def test_an_estimate_without_records_names_its_assumptions() -> None:
    flops = plan().flops.training_hardware * plan().budget.tokens
    cpu = estimate(plan(), machine("a CPU", None), [], cores=4)
    assert cpu.time_s == pytest.approx(flops / (4 * ASSUMED_CORE_FLOPS) + ASSUMED_START_S)
    assert (cpu.energy_j, cpu.around_s) == (None, ASSUMED_START_S)
    assert "assumed (4 cores), and 5 s to start" in cpu.time_source
    assert "no record in this folder" in cpu.energy_source
    gpu = estimate(plan(), machine("NVIDIA A100-SXM4-80GB", 80 * 10**9), [], cores=4)
    rates = device_rates("A100 80GB SXM", "fp32")
    step_s = project(plan().config, plan().layout, rates).step_time_s
    assert gpu.time_s == pytest.approx(step_s * plan().budget.steps)
    assert "projected from the rates of A100 80GB SXM, " in gpu.time_source
    assert gpu.time_source.endswith(reached("A100 80GB SXM", plan().config.model).time_range)
    unknown = estimate(plan(), machine("Ascend 910B", 64 * 10**9), [], cores=4)
    assert unknown.time_s is None
    assert "depends on its SKU" in unknown.time_source


def test_time_bounds_the_estimate_of_a_run_whose_length_nobody_set() -> None:
    def of(cores: float, steps: str = "null") -> float:
        run = plan_anywhere(resolve("gqa_0.5B", overrides=[f"training.steps={steps}"]))
        return (estimate(run, machine("a CPU", None), [], cores).time_s or 0.0) - ASSUMED_START_S

    step_s = of(1, "405") / 405
    # So slow that the fewest steps take longer than the limit; within it; and so fast that all steps fit.
    assert of(1) == pytest.approx(55 * step_s)
    assert of(step_s / 6) == pytest.approx(5 * 6 + 600)
    assert of(step_s) == pytest.approx(405)
    slow = estimate(plan_anywhere(resolve("gqa_0.5B")), machine("a CPU", None), [], 1)
    assert "600 s are measured at most" in slow.time_source


def test_an_estimate_uses_records_of_the_same_device() -> None:
    """The estimate takes the time and the joules per token of the record."""
    facts = {"device_name": "a CPU", "dtype": "fp32", "devices": 1, "tokens_per_s": 1000.0}
    facts |= {"flops_per_token": float(plan().flops.training), "al_s": 0.5, "steps_measured": 10, "duration_s": 7.5}
    facts |= {"energy_j_per_token": 0.25, "energy_scope": "cpu-package", "config": {"measurement": {"warmup_steps": 5}}}
    other = make_record({**facts, "device_name": "another", "tokens_per_s": 1e9})
    found = estimate(plan(), machine("a CPU", None), [other, make_record(facts)], cores=4)
    # 0 s besides its 15 steps of half a second.
    assert found.time_s == pytest.approx(plan().budget.tokens / 1000.0)
    assert found.energy_j == pytest.approx(plan().budget.tokens * 0.25)
    later = make_record({**facts, "duration_s": 27.5})
    longer = estimate(plan(), machine("a CPU", None), [later], cores=4)
    assert longer.time_s == pytest.approx(plan().budget.tokens / 1000.0 + 20)


def test_muons_products_take_time_beyond_rates_of_other_optimizers() -> None:
    muon = plan_anywhere(resolve("gqa_0.5B", True, ["training.optimizer=muon"]))
    flops = muon.flops.training_hardware * muon.budget.tokens
    updates = muon_flops(muon.config, muon.layout) * muon.budget.steps
    assert updates > 0.1 * flops
    assumed = estimate(muon, machine("a CPU", None), [], cores=4)
    assert assumed.time_s == pytest.approx((flops + updates) / (4 * ASSUMED_CORE_FLOPS) + ASSUMED_START_S)
    facts = {"device_name": "a CPU", "dtype": "fp32", "devices": 1, "tokens_per_s": 1000.0}
    facts |= {"flops_per_token": float(muon.flops.training), "al_s": 0.5, "steps_measured": 10, "duration_s": 5.0}
    adamw, same = (make_record({**facts, "config": {"training": {"optimizer": name}}}) for name in ("adamw", "muon"))
    by_others = estimate(muon, machine("a CPU", None), [adamw], cores=4)
    assert by_others.time_s == pytest.approx(muon.budget.tokens / 1000.0 * (1 + updates / flops))
    # A rate of Muon's has the products already.
    known = estimate(muon, machine("a CPU", None), [adamw, same], cores=4)
    assert known.time_s == pytest.approx(muon.budget.tokens / 1000.0)


def test_an_estimate_counts_recomputation_once() -> None:
    """A record of the very same run, recomputing too, takes what the record took."""
    full = plan_anywhere(resolve("gqa_0.5B", True, ["training.recompute=full"]))
    facts = {"device_name": "a CPU", "dtype": "fp32", "devices": 1, "tokens_per_s": 1000.0}
    facts |= {"flops_per_token": float(full.flops.training), "al_s": 0.5, "steps_measured": 10, "duration_s": 7.5}
    facts |= {"energy_j_per_token": 0.25, "energy_scope": "cpu-package"}
    facts |= {"config": {"measurement": {"warmup_steps": 5}, "training": {"recompute": "full"}}}
    less = full.flops.training / full.flops.training_hardware
    for run, factor in ((full, 1.0), (plan(), less)):
        found = estimate(run, machine("a CPU", None), [make_record(facts)], cores=4)
        tokens = run.budget.tokens * factor
        assert (found.time_s, found.energy_j) == (pytest.approx(tokens / 1000.0), pytest.approx(tokens * 0.25))


def test_a_run_that_samples_answers_neither_has_nor_gives_an_estimate() -> None:
    rewarded = plan_anywhere(resolve("rl_d8", True, ["training.steps=50", "rl.questions=/rows", "rl.test_every=0"]))
    found = estimate(rewarded, machine("a CPU", None), [], cores=4)
    assert (found.time_s, found.energy_j) == (None, None)
    assert "the answers that a run samples between its steps" in found.time_source
    learned = Reinforcement(40, 0, 0, 0.1, 0.3, None, None, [])
    facts = {"device_name": "a CPU", "dtype": "fp32", "tokens_per_s": 1.0, "reinforcement": learned, "duration_s": 9e9}
    sampled = estimate(plan(), machine("a CPU", None), [make_record(facts)], cores=4)
    assert "assumed (4 cores)" in sampled.time_source
