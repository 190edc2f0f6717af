"""Parameters, FLOPs, memory and traffic of fine-tunings, against published counts and sums by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from efficientbench.basics.errors import ConfigError
from efficientbench.finetuning.planning.cost import (
    TRITON_TILE_BYTES,
    Trained,
    ZeroLayout,
    attended_length,
    host_memory,
    rank_memory,
    tuning_flops,
)
from efficientbench.finetuning.planning.plan import RUNTIME_BYTES
from efficientbench.finetuning.planning.shapes import PUBLISHED, Shape, shape_of
from efficientbench.finetuning.planning.step import Rates, crosses_nodes, project_step, step_traffic

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
QWEN25, QWEN3 = PUBLISHED["Qwen/Qwen2.5-32B"], PUBLISHED["Qwen/Qwen3-32B"]
LORA = Trained("lora", 64, TARGETS, 2)
FULL, FREEZE, DORA = (replace(LORA, method=method) for method in ("full", "freeze", "dora"))
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


def memory(trained: Trained = LORA, shape: Shape = QWEN25, **changes: Any) -> dict[str, int]:
    return rank_memory(shape, trained, replace(TWO_NODES, **changes), RUNTIME_BYTES)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen/Qwen2.5-3B", 3_085_938_688),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen2.5-14B-Instruct", 14_770_033_664),
        ("Qwen/Qwen2.5-32B-Instruct", 32_763_876_352),
        ("modelscope:Qwen/Qwen2.5-32B-Instruct", 32_763_876_352),
        ("Qwen/Qwen3-32B", 32_762_123_264),
    ],
)
def test_models_have_their_published_parameters(model: str, parameters: int) -> None:
    assert shape_of(model).parameters == parameters


def test_lora_of_rank_64_on_a_32b_model_has_its_known_parameters() -> None:
    assert LORA.parameters(QWEN25) == LORA.parameters(QWEN3) == 536_870_912
    assert DORA.parameters(QWEN25) - LORA.parameters(QWEN25) == 64 * (5120 * 3 + 1024 * 2 + 27_648 * 2)
    assert FREEZE.parameters(QWEN25) == 2 * QWEN25.layer_parameters
    assert FULL.parameters(QWEN25) == QWEN25.parameters


def test_flops_of_lora_are_fewer_than_those_of_pretraining() -> None:
    lora = tuning_flops(QWEN25, LORA, 2048, recompute=True)
    full = tuning_flops(QWEN25, FULL, 2048, recompute=False)
    assert round(lora.training / 1e9, 1) == 135.2
    assert round(full.training / 1e9, 1) == 195.9
    assert full.training / lora.training == pytest.approx(1.45, abs=0.01)
    # With the logits once more, 2 · V · h.
    assert lora.hardware / 1e9 == pytest.approx(200.0 + 1.557, abs=0.05)
    assert full.recomputed == 2 * QWEN25.table
    assert full.recomputed < lora.recomputed, "adapters are computed again too"


def test_flops_of_logits_count_only_tokens_with_a_loss() -> None:
    """Logits that the device computes for other tokens are no work of the method."""
    whole = tuning_flops(QWEN25, FULL, 2048, recompute=True)
    half = tuning_flops(QWEN25, FULL, 2048, recompute=True, scored=0.5, projected=0.5)
    wasted = tuning_flops(QWEN25, FULL, 2048, recompute=True, scored=0.5)
    assert whole.training - half.training == pytest.approx(3 * QWEN25.table)
    assert whole.recomputed - half.recomputed == pytest.approx(QWEN25.table)
    assert (wasted.training, wasted.hardware) == pytest.approx((half.training, whole.hardware))


def test_the_cost_of_samples_is_the_sum_over_their_lengths() -> None:
    lengths = [100, 400, 2048, 7]
    each = sum(length * tuning_flops(QWEN25, LORA, length, recompute=True).training for length in lengths)
    together = tuning_flops(QWEN25, LORA, attended_length(lengths), recompute=True).training
    assert sum(lengths) * together == pytest.approx(each, rel=1e-12)
    mean = tuning_flops(QWEN25, LORA, sum(lengths) / len(lengths), recompute=True).training
    assert sum(lengths) * mean < each


def test_each_of_sixteen_ranks_has_a_sixteenth_of_the_states() -> None:
    parts = memory()
    assert round(parts["frozen weights"] / 1e9, 2) == 4.10
    states = parts["trained weights"] + parts["gradients"] + parts["optimizer"]
    assert round(states / 1e9, 2) == 0.54
    assert round(sum(memory(FULL)[part] for part in ("trained weights", "gradients", "optimizer")) / 1e9, 1) == 32.8
    assert round(memory(stage=0)["frozen weights"] / 1e9, 1) == 65.5
    assert round(memory(hpz=8)["second copy (hpZ)"] / 1e9, 2) == round((32.764 + 0.537) * 2 / 8, 2)


def test_activations_and_logits_of_a_32b_model_match_hand_counts() -> None:
    parts = memory()
    assert round(parts["activations kept"] / 1e9, 2) == 1.34
    # A tile of 2,048 × 32,768 logits with 30 bytes each, and gradients of 2,048 hidden states in float32.
    assert parts["loss or one layer"] == 30 * 2048 * 32_768 + 4 * 2048 * 5120
    assert memory(micro=4)["loss or one layer"] < 3 * parts["loss or one layer"], "no more than 4,096 rows at a time"
    assert memory(FULL)["loss or one layer"] == parts["loss or one layer"] + 6 * 152_064 * 5120
    # Where a kernel computes them in place, one layer's backward pass takes more.
    assert memory(tile_bytes=TRITON_TILE_BYTES)["loss or one layer"] / 1e9 == pytest.approx(1.22, abs=0.005)
    assert memory(micro=4)["activations kept"] == 4 * parts["activations kept"]
    assert memory(recompute=False)["activations kept"] > 40e9, "out of memory on 64 GB"
    # The small tensors of the published settings: the adapters of most layers are below a million numbers.
    assert memory(persistence=1_000_000)["small tensors kept whole"] / 2 == pytest.approx(197e6, rel=0.01)


def test_offloaded_states_move_to_the_host() -> None:
    optimizer, everything = memory(offload="optimizer"), memory(offload="all")
    assert "optimizer" not in optimizer
    assert "frozen weights" not in everything
    on_host = host_memory(QWEN25, LORA, replace(TWO_NODES, offload="all"))
    assert on_host / 1e9 == pytest.approx(4.10 + 16 * 0.536870912 / 16, abs=0.01)
    assert host_memory(QWEN25, LORA, TWO_NODES) == 0


def test_larger_micro_batches_and_settings_reduce_the_gathers_of_a_step() -> None:
    """Micro-batches of one sample take 983 GB, of four samples 246 GB."""

    def frozen(**changes: Any) -> float:
        traffic = step_traffic(QWEN25, LORA, replace(TWO_NODES, **changes))
        return sum(each.sent_bytes for each in traffic if "frozen" in each.purpose) / 1e9

    assert round(frozen()) == 983
    assert round(frozen(micro=4, accumulation=2)) == 246
    assert frozen(stage=2) == 0


def test_frozen_layers_without_gradients_are_not_gathered_again() -> None:
    sent = {each.purpose: each.payload_bytes for each in step_traffic(QWEN25, FREEZE, TWO_NODES)}
    assert sent["frozen weights, backward"] == 8 * 2 * QWEN25.table
    assert sent["frozen weights, forward"] == 8 * 2 * FREEZE.frozen(QWEN25)
    assert "frozen weights, backward" not in {each.purpose for each in step_traffic(QWEN25, FULL, TWO_NODES)}


def test_with_hpz_the_frozen_weights_stay_in_the_node() -> None:
    layout = replace(TWO_NODES, hpz=8)
    between = {each.purpose for each in step_traffic(QWEN25, LORA, layout) if crosses_nodes(each, layout)}
    assert between == {"trained weights, forward", "gradients"}


def test_a_projected_step_is_compute_plus_communication() -> None:
    rates = Rates("a device", 313e12, in_node_bytes_s=200e9, between_nodes_bytes_s=25e9)
    projected = project_step(QWEN25, LORA, TWO_NODES, rates, 2048)
    assert projected is not None
    # 8 samples of 2,048 tokens at 40 % of the peak; 983 GB of base weights, then adapters and their gradients.
    assert projected.compute_s == pytest.approx(201.5e9 * 8 * 2048 / (0.4 * 313e12), rel=0.002)
    adapters = 3 * 8 * 2 * 536_870_912 * 15 / 16
    assert projected.communication_s == pytest.approx((982.92e9 + adapters) / (0.8 * 200e9), rel=1e-3)
    assert projected.longest_s == projected.compute_s + projected.communication_s
    assert project_step(QWEN25, LORA, TWO_NODES, replace(rates, between_nodes_bytes_s=None), 2048) is None


def test_an_unknown_model_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean Qwen/Qwen3-32B\?"):
        shape_of("Qwen/Qwen3-32b")
    with pytest.raises(ConfigError, match=r"has no config.json"):
        shape_of(str(tmp_path))
    for text, message in (
        ('{"model_type": "gpt2"}', "'gpt2' is none of"),
        ('{"model_type": "qwen2"}', "lacks"),
        ('{"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}', "windows .* not counted"),
        ("{", "gives no shape"),
    ):
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            shape_of(str(tmp_path))
