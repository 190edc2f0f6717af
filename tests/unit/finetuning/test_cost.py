"""Parameters, FLOPs, memory and traffic of fine-tunings, against published counts, transformers, PEFT and torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from efficientbench.config.errors import ConfigError
from efficientbench.finetuning.cost import (
    TRITON_TILE_BYTES,
    Trained,
    ZeroLayout,
    attended_length,
    host_memory,
    layer_bytes_per_token,
    rank_memory,
    tuning_flops,
)
from efficientbench.finetuning.plan import RUNTIME_BYTES
from efficientbench.finetuning.shapes import PUBLISHED, Shape, shape_of, shape_of_config
from efficientbench.finetuning.step import Rates, crosses_nodes, project_step, step_traffic

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
SMALL = Shape(2, 64, 4, 2, 16, 160, 512, tied=False, qkv_bias=True)


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
        ("Qwen/Qwen3-32B", 32_762_123_264),
    ],
)
def test_models_have_their_published_parameters(model: str, parameters: int) -> None:
    assert shape_of(model).parameters == parameters


def test_lora_of_rank_64_on_all_matrices_of_a_32b_model() -> None:
    assert LORA.parameters(QWEN25) == LORA.parameters(QWEN3) == 536_870_912
    assert DORA.parameters(QWEN25) - LORA.parameters(QWEN25) == 64 * (5120 * 3 + 1024 * 2 + 27_648 * 2)
    assert FREEZE.parameters(QWEN25) == 2 * QWEN25.layer_parameters
    assert FULL.parameters(QWEN25) == QWEN25.parameters


def test_flops_of_lora_are_not_those_of_pretraining() -> None:
    lora = tuning_flops(QWEN25, LORA, 2048, recompute=True)
    full = tuning_flops(QWEN25, FULL, 2048, recompute=False)
    assert round(lora.training / 1e9, 1) == 135.2
    assert round(full.training / 1e9, 1) == 195.9
    assert full.training / lora.training == pytest.approx(1.45, abs=0.01)
    # With the logits once more, 2 · V · h.
    assert lora.hardware / 1e9 == pytest.approx(200.0 + 1.557, abs=0.05)
    assert full.recomputed == 2 * QWEN25.table
    assert full.recomputed < lora.recomputed, "adapters are computed again too"


def test_logits_count_for_tokens_with_a_loss() -> None:
    """And those that the device computes beside them are no work of the method."""
    whole = tuning_flops(QWEN25, FULL, 2048, recompute=True)
    half = tuning_flops(QWEN25, FULL, 2048, recompute=True, scored=0.5, projected=0.5)
    wasted = tuning_flops(QWEN25, FULL, 2048, recompute=True, scored=0.5)
    assert whole.training - half.training == pytest.approx(3 * QWEN25.table)
    assert whole.recomputed - half.recomputed == pytest.approx(QWEN25.table)
    assert (wasted.training, wasted.hardware) == pytest.approx((half.training, whole.hardware))


def test_samples_of_many_lengths_cost_what_each_of_them_costs() -> None:
    lengths = [100, 400, 2048, 7]
    each = sum(length * tuning_flops(QWEN25, LORA, length, recompute=True).training for length in lengths)
    together = tuning_flops(QWEN25, LORA, attended_length(lengths), recompute=True).training
    assert sum(lengths) * together == pytest.approx(each, rel=1e-12)
    mean = tuning_flops(QWEN25, LORA, sum(lengths) / len(lengths), recompute=True).training
    assert sum(lengths) * mean < each


def test_a_rank_of_sixteen_has_a_sixteenth_of_the_states() -> None:
    parts = memory()
    assert round(parts["frozen weights"] / 1e9, 2) == 4.10
    states = parts["trained weights"] + parts["gradients"] + parts["optimizer"]
    assert round(states / 1e9, 2) == 0.54
    assert round(sum(memory(FULL)[part] for part in ("trained weights", "gradients", "optimizer")) / 1e9, 1) == 32.8
    assert round(memory(stage=0)["frozen weights"] / 1e9, 1) == 65.5
    assert round(memory(hpz=8)["second copy (hpZ)"] / 1e9, 2) == round((32.764 + 0.537) * 2 / 8, 2)


def test_activations_and_logits_of_a_32b_model() -> None:
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


def test_gathers_of_a_step_and_what_makes_them_fewer() -> None:
    """983 GB with micro-batches of one sample, 246 with four."""

    def frozen(**changes: Any) -> float:
        traffic = step_traffic(QWEN25, LORA, replace(TWO_NODES, **changes))
        return sum(each.sent_bytes for each in traffic if "frozen" in each.purpose) / 1e9

    assert round(frozen()) == 983
    assert round(frozen(micro=4, accumulation=2)) == 246
    assert frozen(stage=2) == 0


def test_frozen_layers_are_not_gathered_where_no_gradient_goes() -> None:
    sent = {each.purpose: each.payload_bytes for each in step_traffic(QWEN25, FREEZE, TWO_NODES)}
    assert sent["frozen weights, backward"] == 8 * 2 * QWEN25.table
    assert sent["frozen weights, forward"] == 8 * 2 * FREEZE.frozen(QWEN25)
    assert "frozen weights, backward" not in {each.purpose for each in step_traffic(QWEN25, FULL, TWO_NODES)}


def test_with_hpz_the_frozen_weights_stay_in_the_node() -> None:
    layout = replace(TWO_NODES, hpz=8)
    between = {each.purpose for each in step_traffic(QWEN25, LORA, layout) if crosses_nodes(each, layout)}
    assert between == {"trained weights, forward", "gradients"}


def test_a_projected_step_adds_computing_and_communication() -> None:
    rates = Rates("a device", 313e12, in_node_bytes_s=200e9, between_nodes_bytes_s=25e9)
    projected = project_step(QWEN25, LORA, TWO_NODES, rates, 2048)
    assert projected is not None
    # 8 samples of 2,048 tokens at 40 % of the peak; 983 GB of base weights, then adapters and their gradients.
    assert projected.compute_s == pytest.approx(201.5e9 * 8 * 2048 / (0.4 * 313e12), rel=0.002)
    adapters = 3 * 8 * 2 * 536_870_912 * 15 / 16
    assert projected.communication_s == pytest.approx((982.92e9 + adapters) / (0.8 * 200e9), rel=1e-3)
    assert projected.longest_s == projected.compute_s + projected.communication_s
    assert project_step(QWEN25, LORA, TWO_NODES, replace(rates, between_nodes_bytes_s=None), 2048) is None


def test_a_model_that_is_not_known_is_an_error_that_helps(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean Qwen/Qwen3-32B\?"):
        shape_of("Qwen/Qwen3-32b")
    with pytest.raises(ConfigError, match=r"has no config.json"):
        shape_of(str(tmp_path))
    for text, message in (
        ('{"model_type": "gpt2"}', "'gpt2' is none of"),
        ('{"model_type": "qwen2"}', "lacks"),
        ("{", "gives no shape"),
    ):
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            shape_of(str(tmp_path))


# Oracles: transformers' models, torch's FLOP counter, and what autograd keeps.


def model_of(shape: Shape, family: str = "qwen2", **kept: Any) -> Any:
    """Return transformers' model of a shape on the device that is the default."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        family,
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.ffn,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied,
        use_cache=False,
        **kept,
    )
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.proof
def test_parameters_are_those_of_transformers(tmp_path: Path) -> None:
    import torch

    for model, shape in PUBLISHED.items():
        with torch.device("meta"):
            built = model_of(shape, "qwen3" if "Qwen3" in model else "qwen2")
        assert sum(parameter.numel() for parameter in built.parameters()) == shape.parameters, model
        modules = built.model.layers[0].named_modules()
        linear = {name.rpartition(".")[2]: each for name, each in modules if isinstance(each, torch.nn.Linear)}
        assert {name: (each.in_features, each.out_features) for name, each in linear.items()} == shape.matrices
        assert shape_of_config(json.loads(built.config.to_json_string())) == shape, model
    for family in ("llama", "mistral"):
        with torch.device("meta"):
            built = model_of(replace(SMALL, qkv_bias=False), family)
        assert sum(parameter.numel() for parameter in built.parameters()) == replace(SMALL, qkv_bias=False).parameters
        assert shape_of_config(json.loads(built.config.to_json_string())) == replace(SMALL, qkv_bias=False)


def adapted(model: Any, trained: Trained, dropout: float) -> Any:
    """Return the model with what PEFT adds, or with only the trained layers' gradients."""
    if trained.adapts:
        pytest.importorskip("peft")
        from peft import LoraConfig, get_peft_model

        arguments = {"use_dora": True} if trained.method == "dora" else {}
        config = LoraConfig(
            task_type="CAUSAL_LM", r=trained.r, target_modules=list(trained.targets), lora_dropout=dropout, **arguments
        )
        model.enable_input_require_grads()
        return get_peft_model(model, config, autocast_adapter_dtype=False)
    if trained.method == "freeze":
        model.requires_grad_(False)
        for layer in model.model.layers[-trained.freeze_layers :]:
            layer.requires_grad_(True)
    return model


CASES = [
    replace(LORA, r=8),
    replace(LORA, r=8, targets=("q_proj", "v_proj")),
    FULL,
    replace(FREEZE, freeze_layers=1),
]
each_case: Callable[[Any], Any] = pytest.mark.parametrize(
    "trained", CASES, ids=["lora", "lora of two", "full", "freeze"]
)


@pytest.mark.proof
@each_case
def test_trained_parameters_are_those_of_peft(trained: Trained) -> None:
    for own in (trained, replace(trained, method="dora")) if trained.adapts else (trained,):
        model = adapted(model_of(SMALL), own, 0.0)
        count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        assert count == own.parameters(SMALL)


@pytest.mark.proof
@each_case
def test_flops_are_those_that_torch_counts(trained: Trained) -> None:
    """The counter sees eager attention, which multiplies the full square."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    tokens = 64
    model = adapted(model_of(SMALL, attn_implementation="eager"), trained, 0.0)
    ids = torch.randint(0, SMALL.vocab, (1, tokens))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    hidden_half = 4 * SMALL.query_width * (tokens - (tokens + 1) / 2)
    passes = SMALL.layers + 2 * trained.layers(SMALL)
    expected = tokens * (tuning_flops(SMALL, trained, tokens, recompute=False).training + passes * hidden_half)
    # The rotation's angles are a matrix product too, of 8 × tokens numbers.
    assert counter.get_total_flops() == pytest.approx(expected, rel=1e-3)


def added(_: Any, first: Any, second: Any, **others: Any) -> int:
    """FLOPs of a product that is added in place, which the counter does not know."""
    return 2 * first[0] * first[1] * second[1]


@pytest.mark.proof
@each_case
@pytest.mark.parametrize("recompute", [False, True])
def test_flops_on_the_device_are_those_that_torch_counts(trained: Trained, recompute: bool) -> None:
    """With the loss that TRL trains by, whose backward pass computes the logits again."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    pytest.importorskip("peft")
    from trl.trainer.utils import add_fused_lm_head

    from efficientbench.finetuning.build import freeze

    tokens = 64
    model = model_of(SMALL, attn_implementation="eager")
    add_fused_lm_head(model)
    if trained.method == "freeze":
        freeze(model, trained.freeze_layers)
    else:
        model = adapted(model, trained, 0.0)
    if recompute:
        model.train().activation_checkpointing_enable({"use_reentrant": True})
    ids = torch.randint(0, SMALL.vocab, (1, tokens))
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: added}) as counter:
        model(input_ids=ids, labels=ids, fused_lm_head=True).loss.backward()
    hidden_half = 4 * SMALL.query_width * (tokens - (tokens + 1) / 2)
    passes = SMALL.layers + (3 if recompute else 2) * trained.layers(SMALL)
    # The last token has nothing to predict.
    share = (tokens - 1) / tokens
    flops = tuning_flops(SMALL, trained, tokens, recompute, scored=share, projected=share)
    assert counter.get_total_flops() == pytest.approx(tokens * (flops.hardware + passes * hidden_half), rel=1e-3)


@pytest.mark.proof
@each_case
def test_kept_activations_are_those_that_autograd_keeps(trained: Trained) -> None:
    """The bytes of one layer more, in bf16 with fused attention."""
    import torch

    tokens = 128

    def kept(layers: int) -> int:
        shape = replace(SMALL, layers=layers)
        model = adapted(model_of(shape, attn_implementation="sdpa"), replace(trained, freeze_layers=layers), 0.05)
        model = model.to(torch.bfloat16).train()
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        stored: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            stored[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        ids = torch.randint(0, shape.vocab, (1, tokens))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(input_ids=ids, labels=ids).loss
        size = sum(storage.nbytes() for pointer, storage in stored.items() if pointer not in weights)
        loss.backward()
        return size

    # A GPU's dropout keeps a mask of a byte. A CPU's keeps the factors in bf16, another byte for each number.
    wider = sum(SMALL.matrices[name][0] for name in trained.targets) if trained.adapts else 0
    assert (kept(3) - kept(2)) / tokens == pytest.approx(layer_bytes_per_token(SMALL, trained) + wider, rel=0.002)
