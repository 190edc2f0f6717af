"""Parameters, FLOPs and activations of fine-tunings, against transformers, PEFT, torch's counter and autograd."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from efficientbench.finetuning.planning.cost import Trained, layer_bytes_per_token, tuning_flops
from efficientbench.finetuning.planning.shapes import PUBLISHED, Shape, shape_of_config

pytestmark = pytest.mark.proof

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LORA = Trained("lora", 8, TARGETS, 2)
SMALL = Shape(2, 64, 4, 2, 16, 160, 512, tied=False, qkv_bias=True)


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


def test_parameters_match_transformers(tmp_path: Path) -> None:
    import torch

    for model, shape in PUBLISHED.items():
        with torch.device("meta"):
            built = model_of(shape, "qwen3" if "Qwen3" in model else "qwen2")
        assert sum(parameter.numel() for parameter in built.parameters()) == shape.parameters, model
        modules = built.model.layers[0].named_modules()
        linear = {name.rpartition(".")[2]: each for name, each in modules if isinstance(each, torch.nn.Linear)}
        assert {name: (each.in_features, each.out_features) for name, each in linear.items()} == shape.matrices
        assert shape_of_config(json.loads(built.config.to_json_string())) == shape, model
    plain, biased = replace(SMALL, qkv_bias=False), replace(SMALL, output_bias=True)
    for family, shape in (
        ("llama", plain),
        ("mistral", plain),
        ("llama", biased),
        ("smollm3", plain),
        ("smollm3", biased),
    ):
        with torch.device("meta"):
            built = model_of(
                shape, family, pad_token_id=None, **({"attention_bias": True} if shape.output_bias else {})
            )
        assert sum(parameter.numel() for parameter in built.parameters()) == shape.parameters
        assert shape_of_config(json.loads(built.config.to_json_string())) == shape


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
    LORA,
    replace(LORA, targets=("q_proj", "v_proj")),
    replace(LORA, method="full"),
    replace(LORA, method="freeze", freeze_layers=1),
]
each_case: Callable[[Any], Any] = pytest.mark.parametrize(
    "trained", CASES, ids=["lora", "lora of two", "full", "freeze"]
)


@each_case
def test_trained_parameters_match_peft(trained: Trained) -> None:
    for own in (trained, replace(trained, method="dora")) if trained.adapts else (trained,):
        model = adapted(model_of(SMALL), own, 0.0)
        count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        assert count == own.parameters(SMALL)


@each_case
def test_flops_match_torchs_counter(trained: Trained) -> None:
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


@each_case
@pytest.mark.parametrize("recompute", [False, True])
def test_flops_on_the_device_match_torchs_counter(trained: Trained, recompute: bool) -> None:
    """The backward pass of TRL's loss computes the logits again."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    pytest.importorskip("peft")
    from trl.trainer.utils import add_fused_lm_head

    from efficientbench.finetuning.methods import AdapterConfig, freeze

    tokens = 64
    model = model_of(SMALL, attn_implementation="eager")
    add_fused_lm_head(model)
    if trained.method == "freeze":
        freeze(model, AdapterConfig(freeze_layers=trained.freeze_layers))
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


@each_case
def test_activation_bytes_match_those_that_autograd_saves(trained: Trained) -> None:
    """Count the bytes of one more layer, in bf16 with fused attention."""
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
