"""GQA and MQA against transformers' Qwen2, MLA against its DeepSeek-V2: the same logits, loss and gradients."""

from __future__ import annotations

import pytest
import torch
from oracles.deepseek import deepseek_config, to_deepseek
from oracles.deepseek import same_weights as deepseek_of
from oracles.oracle import (
    assert_gradients_equal,
    build,
    dense_attention,
    gradients_beside,
    relative_error,
    weights_of,
)
from oracles.qwen2 import same_weights as qwen2_of
from oracles.qwen2 import to_qwen2
from support.configs import tiny

from efficientbench.config.load import resolve
from efficientbench.costs.model import count_parameters

pytestmark = pytest.mark.usefixtures("single_rank")


# MLA without and with compressed queries, and with values narrower and wider than the keys' part without position.
CASES = {
    **{name: (name, []) for name in ("gqa_0.5B", "gqa_1.5B", "gqa_3B", "mqa_1.5B")},
    "DeepSeek-V2-Lite": ("mla_1.5B", []),
    "compressed queries": ("mla_1.5B", ["model.attention.q_lora_rank=20"]),
    "widths of its own": ("mla_1.5B", ["model.attention.v_head_dim=8", "model.attention.qk_rope_head_dim=10"]),
    "values as wide as keys": ("mla_1.5B", ["model.attention.v_head_dim=18"]),
}


@pytest.mark.parametrize(("name", "overrides"), CASES.values(), ids=CASES)
def test_logits_loss_and_gradients_equal_those_of_transformers(name: str, overrides: list[str]) -> None:
    config = tiny(name, "model.init_std=0.2", *overrides)
    of, to = (deepseek_of, to_deepseek) if name.startswith("mla") else (qwen2_of, to_qwen2)
    model = build(config)
    oracle = of(weights_of(model), config.model)
    gradients = gradients_beside(model, config, lambda tokens: oracle(tokens).logits)
    assert_gradients_equal(to(gradients, config.model), oracle)


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
    model = resolve(name, overrides=overrides).model
    configuration = deepseek_config(model)
    from transformers import DeepseekV2ForCausalLM

    with torch.device("meta"):
        deepseek = DeepseekV2ForCausalLM(configuration)
    assert count_parameters(model).total == deepseek.num_parameters()
