"""GQA and MQA with RoPE against transformers' Qwen2: the same weights, logits, loss and gradients."""

from __future__ import annotations

import pytest
import torch
from support.configs import tiny
from support.qwen2 import same_weights, to_qwen2

pytestmark = pytest.mark.usefixtures("single_rank")


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, relative to the largest expected value."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("name", ["gqa_0.5B", "gqa_1.5B", "gqa_3B", "mqa_1.5B"])
def test_logits_loss_and_gradients_equal_qwen2(name: str) -> None:
    from efficientbench.model.gpt import build_stage
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.optimizer import wrap_data_parallel

    config = tiny(name, "model.init_std=0.2")
    model = build_stage(config, torch.device("cpu"))
    parameters = global_parameters(model)
    generator = torch.Generator().manual_seed(1)
    for key, parameter in parameters.items():
        if parameter.dim() == 1:  # norms of one and biases of zero would hide mistakes
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
        assert torch.isfinite(parameter).all(), key
    qwen2 = same_weights({key: parameter.detach().clone() for key, parameter in parameters.items()}, config.model)
    sequence = torch.randint(config.model.vocab_size, (2, config.training.seq_len + 1), generator=generator)
    tokens, labels = sequence[:, :-1], sequence[:, 1:]

    expected = qwen2(tokens).logits
    expected_loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum")
    expected_loss.backward()
    wrapped = wrap_data_parallel(model, config)
    logits = wrapped(tokens)
    loss = wrapped(tokens, labels, torch.ones_like(labels))
    loss.backward()

    assert relative_error(logits, expected) < 1e-5
    assert relative_error(loss, expected_loss) < 1e-5
    gradients = to_qwen2({key: parameter.main_grad for key, parameter in parameters.items()}, config.model)
    for key, oracle in qwen2.named_parameters():
        assert relative_error(gradients[key], oracle.grad) < 1e-5, key
