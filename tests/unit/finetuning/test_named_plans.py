"""The plan of a named fine-tuning."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.finetuning.planning.plan_table import print_tuning_plan
from efficientbench.finetuning.planning.request import plan_request


def printed(
    name: str, *overrides: str, world: int = 16, device: str | None = None, memory_gb: float | None = None
) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    print_tuning_plan(plan_request(resolve_tuning(name, overrides=overrides), world, 8, device, memory_gb), console)
    return console.export_text()


def test_a_32b_model_is_planned_on_two_nodes_of_64_gb_devices() -> None:
    text = printed("lora_32B")
    for words in (
        "lora_32B: 32,763,876,352 parameters, 536,870,912 trained",
        "ZeRO-3, 1 × 8, recomputed on 16 ranks",
        "fits in 64 GB",
        "step time: n/a",
    ):
        assert words in text, words


def test_a_plan_in_another_dtype_than_bf16_says_so() -> None:
    told = "memory and traffic are those of bf16: training.dtype=fp32 takes more of both"
    assert [told in printed(name, world=2) for name in ("lora_tiny", "lora_0.5B")] == [True, False]


def test_a_named_device_gives_memory_and_time() -> None:
    text = printed("lora_32B", "training.micro_batch_size=4", device="H100 SXM")
    assert "fits in 80 GB" in text
    assert "projected on H100 SXM" in text
    assert "ZeRO-3, 4 × 2, recomputed on 16 ranks" in text


def test_a_device_outside_the_table_has_its_compute_time() -> None:
    """An Ascend 910B is such a device: its peak depends on its SKU."""
    text = printed("lora_32B", "measurement.peak_flops=313e12", memory_gb=64)
    assert "what links carry is not known" in text


def test_every_method_and_size_has_a_plan() -> None:
    for name in ("full_0.5B", "freeze_7B", "dora_14B", "pissa_qwen3_32B", "lora_plus_tiny", "rslora_32B"):
        assert name in printed(name, world=4 if name.endswith("tiny") else 8)


def test_an_unknown_model_or_device_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shape of Qwen/Qwen9 is not known"):
        printed("lora_32B", "model=Qwen/Qwen9")
    with pytest.raises(MetricsError, match="did you mean 'H100 SXM'"):
        printed("lora_32B", device="H100 SXN")


@pytest.mark.parametrize("override", ["zero.offload=all", "zero.hpz=8"])
def test_unsharded_weights_are_neither_offloaded_nor_copied(override: str) -> None:
    with pytest.raises(ConfigError, match="needs stage=3, not 2"):
        resolve_tuning("lora_7B", overrides=["zero.stage=2", override])
