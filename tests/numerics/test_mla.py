"""MLA against transformers' DeepSeek-V2, its causality, and what cost.py says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from support.configs import tiny
from support.deepseek import deepseek_config, same_weights, to_deepseek

from efficientbench import cost
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

# Without and with compressed queries, and with values narrower and wider than the keys' part without position.
SHAPES: dict[str, list[str]] = {
    "DeepSeek-V2-Lite": [],
    "compressed queries": ["model.attention.q_lora_rank=20"],
    "widths of its own": ["model.attention.v_head_dim=8", "model.attention.qk_rope_head_dim=10"],
    "values as wide as keys": ["model.attention.v_head_dim=18"],
}


def config_of(*overrides: str) -> RunConfig:
    return tiny("mla_1.5B", "model.init_std=0.2", *overrides)


def build(config: RunConfig) -> GPT:
    from efficientbench.model.gpt import build_stage

    return build_stage(config, torch.device("cpu"))


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, relative to the largest expected value."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_logits_loss_and_gradients_equal_deepseek(shapes: list[str]) -> None:
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.optimizer import wrap_data_parallel

    config = config_of(*shapes)
    model = build(config)
    parameters = global_parameters(model)
    generator = torch.Generator().manual_seed(1)
    for parameter in parameters.values():
        if parameter.dim() == 1:  # norms of one would hide mistakes
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    deepseek = same_weights({key: parameter.detach().clone() for key, parameter in parameters.items()}, config.model)
    sequence = torch.randint(config.model.vocab_size, (2, config.training.seq_len + 1), generator=generator)
    tokens, labels = sequence[:, :-1], sequence[:, 1:]

    expected = deepseek(tokens).logits
    expected_loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum")
    expected_loss.backward()
    wrapped = wrap_data_parallel(model, config)
    logits = wrapped(tokens)
    loss = wrapped(tokens, labels, torch.ones_like(labels))
    loss.backward()

    assert relative_error(logits, expected) < 1e-5
    assert relative_error(loss, expected_loss) < 1e-5
    gradients = to_deepseek({key: parameter.main_grad for key, parameter in parameters.items()}, config.model)
    for key, oracle in deepseek.named_parameters():
        assert relative_error(gradients[key], oracle.grad) < 1e-5, key


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("position", [1, 7, 15])
def test_a_token_changes_no_logit_before_it(position: int) -> None:
    config = config_of()
    model = build(config)
    tokens = torch.randint(config.model.vocab_size, (2, config.training.seq_len))
    changed = tokens.clone()
    changed[:, position] = (changed[:, position] + 1) % config.model.vocab_size
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :position], after[:, :position])
    assert not torch.isclose(before[:, position:], after[:, position:]).all(dim=-1).any()


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_parameters_and_flops_are_those_of_the_cost_formulas(
    shapes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from efficientbench.model import context_parallel

    config = config_of(*shapes)
    model = build(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == cost.parameters(config.model).total

    monkeypatch.setattr(context_parallel, "causal_attention", written_out_attention)
    tokens = torch.zeros(3, config.training.seq_len, dtype=torch.long)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(tokens)
    flops = cost.flops_per_token(config.model, config.training.seq_len)
    assert counter.get_total_flops() == flops.forward_full_square * tokens.numel()


def written_out_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention as matmuls, because the counter does not see the CPU's fused kernel."""
    scores = torch.einsum("sbhd,tbhd->bhst", query, key) * scale
    masked = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return torch.einsum("bhst,tbhd->sbhd", masked.softmax(dim=-1), value).flatten(2)


def test_values_narrower_than_keys_do_not_cost_the_cpu_its_flash_kernel() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from efficientbench.model.kernels.attention import causal_attention

    query, key, value = torch.randn(9, 2, 3, 12), torch.randn(9, 2, 3, 12), torch.randn(9, 2, 3, 8)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = causal_attention(query, key, value, 0.3)
    assert relative_error(out, written_out_attention(query, key, value, 0.3)) < 1e-5


@pytest.mark.parametrize("name", ["mla_0.5B", "mla_1.5B", "mla_3B"])
@pytest.mark.parametrize("overrides", [[], ["model.attention.q_lora_rank=384"]])
def test_parameters_equal_deepseeks(name: str, overrides: list[str]) -> None:
    from transformers import DeepseekV2ForCausalLM

    model = resolve(name, overrides=overrides).model
    with torch.device("meta"):
        deepseek = DeepseekV2ForCausalLM(deepseek_config(model))
    assert cost.parameters(model).total == deepseek.num_parameters()
