"""The plan of a fine-tuning: which layouts fit, which is best, and what is printed."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from typing import Any

from rich.console import Console

from efficientbench.finetuning.planning.cost import Trained, ZeroLayout, rank_memory
from efficientbench.finetuning.planning.plan import RUNTIME_BYTES, PlanRequest, asked, fitting
from efficientbench.finetuning.planning.plan_table import print_tuning_plan
from efficientbench.finetuning.planning.shapes import PUBLISHED
from efficientbench.finetuning.planning.step import Rates, project_step

LORA = Trained(
    "lora", 64, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), freeze_layers=2
)
TWO_NODES = ZeroLayout(
    world=16,
    per_node=8,
    stage=3,
    hpz=1,
    micro=1,
    accumulation=8,
    recompute=True,
    offload="none",
    tokens=2048,
    persistence=51_200,
)
RATES = Rates("a device", 313e12, in_node_bytes_s=200e9, between_nodes_bytes_s=25e9)


def request(
    size: str = "32B", memory_gb: float = 64, rates: Rates | None = RATES, method: str = "lora", **changes: Any
) -> PlanRequest:
    layout = replace(TWO_NODES, **changes)
    shape = PUBLISHED[f"Qwen/Qwen2.5-{size}"]
    return PlanRequest(f"{method}_{size}", shape, replace(LORA, method=method), layout, memory_gb * 1e9, rates)


def printed(given: PlanRequest) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    print_tuning_plan(given, console)
    return console.export_text()


def test_a_32b_model_fits_two_nodes_of_eight_only_with_sharded_weights() -> None:
    plans = fitting(request())
    assert asked(request()).fits
    assert {plan.layout.stage for plan in plans} == {3}
    assert all(plan.layout.micro * plan.layout.accumulation == 8 for plan in plans)
    assert len({plan.layout for plan in plans}) == len(plans)


def test_the_best_layout_is_the_fastest_of_those_that_fit() -> None:
    """Compare with every combination, one by one."""
    given = request()
    times = {}
    for stage, hpz in ((2, 1), (3, 1), (3, 8)):
        for micro in (1, 2, 4, 8):
            for recompute in (False, True):
                for offload in ("none", "optimizer") if stage == 2 else ("none", "optimizer", "all"):
                    layout = replace(
                        TWO_NODES, stage=stage, hpz=hpz, micro=micro, accumulation=8 // micro, recompute=recompute
                    )
                    layout = replace(layout, offload=offload)
                    size = sum(rank_memory(given.shape, given.trained, layout, RUNTIME_BYTES).values())
                    projected = project_step(given.shape, given.trained, layout, RATES, 2048)
                    if size <= 0.9 * 64e9 and projected is not None:
                        times[layout] = projected.longest_s
    best = fitting(given)[0].layout
    assert times[best] == min(times.values())
    assert (best.hpz, best.offload) == (8, "none")
    assert fitting(given)[0].time(2048) == project_step(given.shape, given.trained, best, RATES, 2048)


def test_states_are_offloaded_only_where_nothing_else_fits() -> None:
    """Every layout would fit with less memory; none offloads what would fit without."""
    plans = fitting(request("32B", method="full"))
    assert {"none", "optimizer"} <= {plan.layout.offload for plan in plans}
    for plan in plans:
        if plan.layout.offload != "none":
            milder = "none" if plan.layout.offload == "optimizer" else "optimizer"
            parts = rank_memory(
                plan.request.shape, plan.request.trained, replace(plan.layout, offload=milder), RUNTIME_BYTES
            )
            assert sum(parts.values()) > 0.9 * 64e9, plan.layout


def test_a_model_that_fits_on_one_device_needs_no_gathers() -> None:
    best = fitting(request("7B"))[0]
    assert best.layout.stage == 2
    assert all("frozen" not in each.purpose for each in best.traffic)


def test_the_best_layout_without_rates_has_the_least_traffic_between_nodes() -> None:
    plans = fitting(request(rates=None))
    sent = [plan.sent_bytes(between_nodes=True) for plan in plans]
    assert sent == sorted(sent)
    assert plans[0].layout.hpz == 8
    text = printed(request(rates=None))
    assert "step time: n/a; --device NAME" in text
    assert "samples/s" not in text


def test_a_plan_prints_its_figures_and_their_assumptions() -> None:
    text = printed(request())
    for words in (
        "32,763,876,352 parameters, 536,870,912 trained (1.64%)",
        "frozen weights          ",
        "4.10",
        "491.5",
        "135.2 GFLOP of the method",
        "assumed, not measured: 40% of 313 TFLOP/s",
        "All figures are computed",
        "as asked",
    ):
        assert words in text, words
    assert text.count("ZeRO-3") >= 5


def test_only_compute_time_is_projected_where_links_are_unknown() -> None:
    text = printed(request(rates=Rates("an NPU", 313e12)))
    assert "step time: n/a; what links carry is not known; computing assumes 40% of 313 TFLOP/s" in text
    assert "computing s" in text
    assert "samples/s" not in text


def test_a_layout_that_does_not_fit_is_reported() -> None:
    assert "does NOT fit in 64 GB" in printed(request(stage=0))
    text = printed(request(memory_gb=8))
    assert "no layout of ZeRO 2 or 3 fits 8 GB" in text


def test_a_single_device_communicates_nothing() -> None:
    plan = asked(request("0.5B", world=1, per_node=1, accumulation=128))
    assert plan.traffic == []
    assert "what a rank sends" not in printed(request("0.5B", world=1, per_node=1, accumulation=128))


def test_a_plan_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, efficientbench.finetuning.planning.plan_table, efficientbench.finetuning.curriculum.choice\n"
        "print([name for name in ('torch', 'transformers', 'peft', 'deepspeed') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
