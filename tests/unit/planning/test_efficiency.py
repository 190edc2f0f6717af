"""Shares of peaks by published runs: how the runs are split, and that the errors are those of the held-out half."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any

import pytest
from support.measured import MEASURED
from support.published import FIT, HELD_OUT, Stated, halved

from efficientbench.config.load import resolve
from efficientbench.metrics.sensors.hardware import device_rates
from efficientbench.planning.basis import Basis
from efficientbench.planning.efficiency import reached, reached_by
from efficientbench.planning.step_time import project


def published() -> list[Stated]:
    stated: list[dict[str, Any]] = json.loads((MEASURED / "published_split.json").read_text(encoding="utf-8"))["stated"]
    return [Stated(**each | {"keys": tuple(each["keys"])}) for each in stated]


def test_published_runs_are_split_by_what_is_planned_and_never_by_their_speed() -> None:
    stated = published()
    assert len(stated) >= 60
    devices = {each.device for each in stated}
    assert len(devices) >= 4
    assert "Ascend 910B1" in devices
    faster = [replace(each, tokens_per_s=1.5 * each.tokens_per_s, half="") for each in reversed(stated)]
    assert sorted((each.row, each.half) for each in halved(faster)) == [(each.row, each.half) for each in stated]
    # Rows that state the same run come into the same half: nothing held out has been fitted.
    assert not {e.digest for e in stated if e.half == FIT} & {e.digest for e in stated if e.half == HELD_OUT}


@pytest.mark.parametrize(("device", "experts"), [("H100 SXM", False), ("Ascend 910B1", True)])
def test_the_errors_of_projections_are_those_on_published_runs_that_were_not_fitted(device: str, experts: bool) -> None:
    found, ratios = reached_by(device, experts), []
    group = "experts" if experts else "dense, H100"
    for each in published():
        if each.group == group and each.half == HELD_OUT:
            config, layout, rates = each.plan()
            tokens = config.training.global_batch_size * config.training.seq_len
            step_s = project(config, layout, rates).step_time_s
            ratios.append(tokens / step_s / each.world / each.tokens_per_s)
    errors = [abs(ratio - 1) for ratio in ratios]
    assert len(ratios) == found.held_out
    assert (found.median_error, found.most_error) == pytest.approx((statistics.median(errors), max(errors)), abs=1e-3)
    assert (found.lowest, found.highest) == pytest.approx((1 / max(ratios), 1 / min(ratios)), abs=2e-3)


def test_a_device_without_published_runs_has_those_of_other_devices_and_says_so() -> None:
    dense, experts = resolve("gqa_3B").model, resolve("moe_0.5Bx8").model
    assert reached("L40S", dense).devices == reached("L40S", experts).devices == ()
    assert "dense models on other devices" in reached("L40S", dense).error
    assert reached("H100 SXM", dense) == reached("H200 SXM", dense) != reached("A100 40GB", dense)
    (said, _) = Basis(device_rates("L40S", "bf16"), reached("L40S", dense)).assumptions
    assert f"as fitted to {reached('L40S', dense).fitted} published runs of dense models on other devices" in said


def test_a_range_has_the_least_and_the_greatest_ratio_of_the_held_out_runs() -> None:
    found = replace(reached_by("H100 SXM", False), lowest=0.8, highest=1.25, median_error=0.08, most_error=0.25)
    assert found.tokens_range(10_000).startswith("8,000 to 12,500 tokens/s a device; on ")
    assert found.time_range.startswith("published runs took 0.80 to 1.25 times as long; on ")
    assert found.error.endswith("projection erred by 8% in the median, 25% at most")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gdn_3to1_1.5B", "none of them has layers of gdn"),
        ("mamba2_1.5B", "none of them has layers of mamba2"),
        ("nsa_1.5B", "none of them has layers of nsa"),
        ("swa_3to1_1.5B", "none of them has layers of swa"),
        ("gqa_1.5B", ""),
        ("mla_1.5B", ""),
    ],
)
def test_the_error_of_published_runs_says_which_layers_none_of_them_has(name: str, told: str) -> None:
    found = reached("H100 SXM", resolve(name).model)
    assert found.error.partition(" at most")[2].removeprefix("; ") == told
    assert found.time_range.endswith(found.error)
