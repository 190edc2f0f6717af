"""A model of ours beside an independent one with the same weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from efficientbench.architecture.model import ModelConfig
from efficientbench.config.schema import RunConfig

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT


CPU = torch.device("cpu")


class AttentionOracle(Protocol):
    """The module `oracles.<kind>` of an attention variant.

    One with kernels that torch's counter of FLOPs does not see has EAGER, too: dotted name of each → a function that
    computes the same by matrix products.
    """

    def same_weights(self, tensors: dict[str, torch.Tensor], model: ModelConfig) -> torch.nn.Module:
        """Return a float32 model of other code with our weights, by global names; its output has `logits`."""

    def renamed(self, tensors: dict[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
        """Return full tensors by our global names, weights or gradients, by that model's names."""


def attention_oracle(kind: str) -> AttentionOracle:
    """Return the oracle that lies beside the variant's name."""
    found: Any = importlib.import_module(f"oracles.{kind}")
    return found


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, relative to the largest expected value."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def build(config: RunConfig, device: torch.device = CPU) -> GPT:
    """A model whose norms and biases are not ones and zeros, which would hide mistakes."""
    from efficientbench.model.gpt import build_stages

    [model] = build_stages(config, device)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += (torch.randn(parameter.shape, generator=generator) * 0.1).to(device)
    return model


def weights_of(model: GPT) -> dict[str, torch.Tensor]:
    """Copies of the model's parameters and buffers by their global names."""
    from efficientbench.model.initial_weights import global_tensors

    return {key: tensor.detach().clone() for key, tensor in global_tensors(model).items()}


def text(config: RunConfig, length: int) -> torch.Tensor:
    """Random tokens [2, length], always the same."""
    generator = torch.Generator().manual_seed(2)
    return torch.randint(config.model.vocab_size, (2, length), generator=generator)


def gradients_beside(
    model: GPT,
    config: RunConfig,
    oracle: Callable[[torch.Tensor], torch.Tensor],
    auxiliary_loss: Callable[[], torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Return our gradients, as `beside` does; logits and summed loss must agree to 1e-5."""
    logits, loss, gradients = beside(model, config, oracle, auxiliary_loss)
    assert logits < 1e-5
    assert loss < 1e-5
    return gradients


def beside(
    model: GPT,
    config: RunConfig,
    oracle: Callable[[torch.Tensor], torch.Tensor],
    auxiliary_loss: Callable[[], torch.Tensor] | None = None,
) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Forward and backward pass of both on one batch.

    Args:
        model: ours.
        config: its configuration.
        oracle: tokens [B, S] → logits [B, S, V]; its parameters hold its gradients afterwards.
        auxiliary_loss: what the oracle adds to its loss, after its forward pass.

    Returns:
        The relative errors of logits and of the summed loss, and our gradients by global names.
    """
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.model.moe import take_routing
    from efficientbench.training.update.optimizer import wrap_data_parallel

    sequence = text(config, config.training.seq_len + 1)
    tokens, labels = sequence[:, :-1], sequence[:, 1:]
    expected = oracle(tokens)
    expected_loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum")
    (expected_loss + auxiliary_loss() if auxiliary_loss else expected_loss).backward()
    wrapped = wrap_data_parallel(model, config)
    logits = wrapped(tokens)
    take_routing(model)
    loss = wrapped(tokens, labels, torch.ones_like(labels))
    loss.backward()
    gradients = {key: parameter.main_grad for key, parameter in global_parameters(model).items()}
    return relative_error(logits, expected), relative_error(loss, expected_loss), gradients


def assert_gradients_equal(gradients: Mapping[str, torch.Tensor], oracle: torch.nn.Module, bound: float = 1e-5) -> None:
    """Every parameter of `oracle` has the gradient of its name, to a bound."""
    errors = gradient_errors(gradients, oracle)
    worse = {name: error for name, error in errors.items() if not error < bound}
    assert not worse, worse


def gradient_errors(gradients: Mapping[str, torch.Tensor], oracle: torch.nn.Module) -> dict[str, float]:
    """The relative error of the gradient of each parameter of `oracle`, by its name."""
    return {name: relative_error(gradients[name], each.grad) for name, each in oracle.named_parameters()}


def dense_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention as its formula says, with all scores at once."""
    sequence, _, heads, _ = query.shape
    query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    distance = torch.arange(sequence)[:, None] - torch.arange(sequence)
    scores = query @ key.transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias[:, distance.clamp(min=0)]
    probabilities = scores.masked_fill(distance < 0, -torch.inf).softmax(dim=-1)
    return (probabilities @ value).permute(2, 0, 1, 3).flatten(2)
