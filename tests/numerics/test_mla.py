"""MLA against transformers' DeepSeek-V2, its causality, and its parameter count by the formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from support.configs import tiny
from support.deepseek import deepseek_config, same_weights, to_deepseek
from support.oracle import build, dense_attention, gradients_beside, relative_error, weights_of

from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import count_parameters

if TYPE_CHECKING:
    pass

# Without and with compressed queries, and with values narrower and wider than the keys' part without position.
SHAPES: dict[str, list[str]] = {
    "DeepSeek-V2-Lite": [],
    "compressed queries": ["model.attention.q_lora_rank=20"],
    "widths of its own": ["model.attention.v_head_dim=8", "model.attention.qk_rope_head_dim=10"],
    "values as wide as keys": ["model.attention.v_head_dim=18"],
}


def config_of(*overrides: str) -> RunConfig:
    return tiny("mla_1.5B", "model.init_std=0.2", *overrides)


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_logits_loss_and_gradients_equal_deepseek(shapes: list[str]) -> None:
    config = config_of(*shapes)
    model = build(config)
    deepseek = same_weights(weights_of(model), config.model)
    gradients = to_deepseek(gradients_beside(model, config, lambda tokens: deepseek(tokens).logits), config.model)
    for key, oracle in deepseek.named_parameters():
        assert relative_error(gradients[key], oracle.grad) < 1e-5, key


def test_values_narrower_than_keys_do_not_cost_the_cpu_its_flash_kernel() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from efficientbench.model.kernels.causal_attention import causal_attention

    query, key, value = torch.randn(9, 2, 3, 12), torch.randn(9, 2, 3, 12), torch.randn(9, 2, 3, 8)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = causal_attention(query, key, value, 0.3)
    assert relative_error(out, dense_attention(query, key, value, 0.3)) < 1e-5


@pytest.mark.parametrize("name", ["mla_0.5B", "mla_1.5B", "mla_3B"])
@pytest.mark.parametrize("overrides", [[], ["model.attention.q_lora_rank=384"]])
def test_parameters_equal_deepseeks(name: str, overrides: list[str]) -> None:
    from transformers import DeepseekV2ForCausalLM

    model = resolve(name, overrides=overrides).model
    with torch.device("meta"):
        deepseek = DeepseekV2ForCausalLM(deepseek_config(model))
    assert count_parameters(model).total == deepseek.num_parameters()
