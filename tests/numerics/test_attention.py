"""Each attention variant against its oracle, transformers' model for most: the same logits, loss and gradients."""

from __future__ import annotations

import pytest
import torch
from oracles.mla import deepseek_config
from oracles.oracle import (
    assert_gradients_equal,
    attention_oracle,
    build,
    dense_attention,
    gradients_beside,
    relative_error,
    weights_of,
)
from support.configs import ATTENTIONS, conditioned, tiny_model

from efficientbench.config.load import resolve
from efficientbench.costs.model import count_parameters

pytestmark = pytest.mark.usefixtures("single_rank")


CASES = {
    **{name: (name, []) for name in ATTENTIONS},
    # Values narrower and wider than the keys' part without position.
    "mla, widths of its own": ("mla", ["model.attention.v_head_dim=8", "model.attention.qk_rope_head_dim=10"]),
    "mla, values as wide as keys": ("mla", ["model.attention.v_head_dim=18"]),
}


@pytest.mark.parametrize(("name", "overrides"), CASES.values(), ids=CASES)
def test_logits_loss_and_gradients_equal_those_of_other_code(name: str, overrides: list[str]) -> None:
    config = tiny_model(name, "model.init_std=0.2", *conditioned(name), *overrides)
    other = attention_oracle(config.model.attention.kind)
    model = build(config)
    oracle = other.same_weights(weights_of(model), config.model)
    gradients = gradients_beside(model, config, lambda tokens: oracle(tokens).logits)
    assert_gradients_equal(other.renamed(gradients, config.model), oracle)


def test_the_cpu_uses_its_flash_kernel_with_values_narrower_than_keys() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from efficientbench.model.kernels.causal_attention import causal_attention

    query, key, value = torch.randn(9, 2, 3, 12), torch.randn(9, 2, 3, 12), torch.randn(9, 2, 3, 8)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = causal_attention(query, key, value, 0.3)
    assert relative_error(out, dense_attention(query, key, value, 0.3)) < 1e-5


@pytest.mark.parametrize("name", ["mla_0.5B", "mla_1.5B", "mla_3B"])
@pytest.mark.parametrize("overrides", [[], ["model.attention.q_lora_rank=384"]])
def test_parameters_of_mla_equal_deepseeks(name: str, overrides: list[str]) -> None:
    model = resolve(name, overrides=overrides).model
    configuration = deepseek_config(model)
    from transformers import DeepseekV2ForCausalLM

    with torch.device("meta"):
        deepseek = DeepseekV2ForCausalLM(configuration)
    assert count_parameters(model).total == deepseek.num_parameters()
