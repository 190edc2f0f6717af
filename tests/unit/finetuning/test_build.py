"""The model as each method trains it: dtypes of weights, and how far gradients go."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from efficientbench.basics.errors import ConfigError
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.finetuning.methods import METHODS, AdapterConfig, freeze

pytest.importorskip("peft")
from efficientbench.finetuning.build import build

LAYERS, VOCABULARY = 4, 97
RATE = 2e-5


def tiny() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=48,
            tie_word_embeddings=True,
        )
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("base")
    tiny().save_pretrained(folder)
    return str(folder)


def config(method: str, stage: int, *more: str) -> FinetuneConfig:
    return resolve_tuning(f"{method}_tiny", overrides=["training.dtype=bf16", f"zero.stage={stage}", *more])


def dtypes(model: Any, trained: bool) -> set[torch.dtype]:
    return {each.dtype for each in model.parameters() if each.requires_grad == trained}


@pytest.mark.parametrize("method", [name for name, each in METHODS.items() if each.lora is not None])
def test_adapters_have_the_dtype_that_zero_3_gathers(base: str, method: str) -> None:
    model, initial = build(config(method, 3), base)
    assert dtypes(model, True) == dtypes(model, False) == {torch.bfloat16}
    assert (initial is not None) == (method == "pissa")
    # Here torch's AdamW updates them itself.
    alone, _ = build(config(method, 0), base)
    assert (dtypes(alone, True), dtypes(alone, False)) == ({torch.float32}, {torch.bfloat16})


def test_the_initial_matrices_of_pissa_are_saved(base: str) -> None:
    model, initial = build(config("pissa", 3), base)
    assert initial is not None
    tensors = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    assert len(initial) == len(tensors) == LAYERS * 7 * 2
    assert all(bool(tensor.any()) for tensor in initial.values())
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.add_(1)
    for name, tensor in tensors.items():
        torch.testing.assert_close(initial[name.replace(".default", "")] + 1, tensor)


@pytest.mark.parametrize("method", ["full", "freeze"])
def test_trained_weights_without_a_float32_copy_are_float32(base: str, method: str) -> None:
    model, _ = build(config(method, 0), base)
    assert dtypes(model, True) == {torch.float32}
    assert dtypes(model, False) <= {torch.bfloat16}
    assert dtypes(build(config(method, 3), base)[0], True) == {torch.bfloat16}
    trained = [each for each in model.parameters() if each.requires_grad and each.dim() == 2]
    before = [each.detach().clone() for each in trained]
    for each in trained:
        each.grad = torch.randn_like(each)
    torch.optim.AdamW(trained, lr=RATE, weight_decay=0).step()
    changed = sum(int((each != old).sum()) for each, old in zip(trained, before, strict=True))
    # Of bf16 weights of this size most would be rounded back.
    assert changed / sum(each.numel() for each in trained) > 0.99


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_frozen_layers_are_neither_recomputed_nor_reached_by_gradients(use_reentrant: bool) -> None:
    ids = torch.randint(0, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(1))
    plain, recomputed = tiny().train(), tiny().train()
    for model in (plain, recomputed):
        freeze(model, AdapterConfig(freeze_layers=1))
    recomputed.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    calls = [0] * LAYERS
    passed: list[int] = []

    def count(number: int) -> Any:
        def hook(_: Any, arguments: Any, output: tuple[torch.Tensor, ...]) -> None:
            calls[number] += 1
            if output[0].requires_grad:
                output[0].register_hook(lambda _: passed.append(number))

        return hook

    for number, layer in enumerate(recomputed.model.layers):
        layer.self_attn.register_forward_hook(count(number))
    for model in (plain, recomputed):
        model(input_ids=ids, labels=ids).loss.backward()
    assert calls == [1, 1, 1, 2]
    assert set(passed) == {3}
    assert bool(recomputed.model.layers[3].mlp.up_proj.weight.grad.any())
    for own, other in zip(plain.parameters(), recomputed.parameters(), strict=True):
        assert (own.grad is None) == (other.grad is None) == (not own.requires_grad)
        if own.grad is not None:
            torch.testing.assert_close(own.grad, other.grad)


def test_training_more_layers_than_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="5 layers are to be trained, and the model has 4"):
        freeze(tiny(), AdapterConfig(freeze_layers=5))


@pytest.mark.parametrize(
    ("target", "told"), [("q_prj", r"named 'q_prj'; did you mean q_proj\?"), ("lm_head", "they are down_proj, gate")]
)
def test_adapters_belong_to_layers_of_the_decoder(base: str, target: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        build(config("lora", 3, f"adapter.targets=[{target}]"), base)
