"""GQA and MQA with RoPE against transformers' Qwen2: the same weights, logits, loss and gradients."""

from __future__ import annotations

import pytest
from support.configs import tiny
from support.oracle import build, gradients_beside, relative_error, weights_of
from support.qwen2 import same_weights, to_qwen2

pytestmark = pytest.mark.usefixtures("single_rank")


@pytest.mark.parametrize("name", ["gqa_0.5B", "gqa_1.5B", "gqa_3B", "mqa_1.5B"])
def test_logits_loss_and_gradients_equal_qwen2(name: str) -> None:
    config = tiny(name, "model.init_std=0.2")
    model = build(config)
    qwen2 = same_weights(weights_of(model), config.model)
    gradients = to_qwen2(gradients_beside(model, config, lambda tokens: qwen2(tokens).logits), config.model)
    for key, oracle in qwen2.named_parameters():
        assert relative_error(gradients[key], oracle.grad) < 1e-5, key
