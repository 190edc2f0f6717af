"""Mixture of experts against transformers' Mixtral, its auxiliary loss against a written formula, its cost."""

from __future__ import annotations

import pytest
import torch
from oracles.mixtral import auxiliary_losses, same_weights, to_mixtral
from oracles.oracle import assert_gradients_equal, build, gradients_beside, relative_error, weights_of
from support.configs import tiny

from efficientbench.model.kernels import grouped_mm as kernel
from efficientbench.model.moe import take_routing

pytestmark = pytest.mark.usefixtures("single_rank")

# Weights of this size give logits that are far apart and gradients that reach every expert.
MIXTRAL_LIKE = ["model.attention.qkv_bias=false", "model.init_std=0.2"]


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("auxiliary_loss", [0, 10])
def test_logits_loss_and_gradients_equal_mixtral(
    auxiliary_loss: int, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not grouped:
        monkeypatch.setattr(kernel, "has_grouped_mm", lambda device_type: False)
    config = tiny("moe_1.5Bx8", *MIXTRAL_LIKE, f"model.moe.auxiliary_loss={auxiliary_loss}")
    model = build(config)
    mixtral = same_weights(weights_of(model), config.model)
    logits_of_routers: list[torch.Tensor] = []
    for layer in mixtral.model.layers:
        layer.mlp.gate.register_forward_hook(lambda gate, inputs, outputs: logits_of_routers.append(outputs[0]))

    def auxiliary() -> torch.Tensor:
        return auxiliary_loss * torch.stack(auxiliary_losses(logits_of_routers, config.model)).sum()

    ours = gradients_beside(model, config, lambda tokens: mixtral(tokens).logits, auxiliary)
    counted = take_routing(model)
    assert counted is not None
    if auxiliary_loss:
        expected = torch.stack(auxiliary_losses(logits_of_routers, config.model))
        assert relative_error(counted[:, 0], expected) < 1e-5
    chosen = [row.topk(2).indices.flatten().bincount(minlength=8).tolist() for row in logits_of_routers]
    assert counted[:, 1:].tolist() == chosen
    assert_gradients_equal(to_mixtral(ours, config.model), mixtral)


@pytest.mark.parametrize("over", ["sequence", "global"])
def test_the_auxiliary_loss_over_more_or_less_than_a_micro_batch(over: str) -> None:
    config = tiny("moe_1.5Bx8", *MIXTRAL_LIKE, "model.moe.auxiliary_loss=10", f"model.moe.auxiliary_over={over}")
    model = build(config)
    mixtral = same_weights(weights_of(model), config.model).double()
    routed: list[torch.Tensor] = []
    for layer in mixtral.model.layers:
        layer.mlp.gate.register_forward_hook(lambda gate, inputs, outputs: routed.append(outputs[0]))
    sequences, shares = (2, None) if over == "sequence" else (1, torch.rand(2, 8).softmax(dim=-1))
    if shares is not None:
        assert all(layer.mlp.router.shares.tolist() == [1 / 8] * 8 for layer in model.decoder.layers)
        for layer, own in zip(model.decoder.layers, shares, strict=True):
            layer.mlp.router.shares.copy_(own)

    def losses() -> torch.Tensor:
        return torch.stack(auxiliary_losses(routed, config.model, sequences, shares))

    ours = gradients_beside(model, config, lambda tokens: mixtral(tokens).logits, lambda: 10 * losses().sum())
    counted = take_routing(model)
    assert counted is not None
    assert relative_error(counted[:, 0], losses()) < 1e-5
    of_the_micro_batch = torch.stack(auxiliary_losses(routed, config.model))
    assert (relative_error(counted[:, 0], of_the_micro_batch)) > 1e-3
    assert_gradients_equal(to_mixtral(ours, config.model), mixtral)


def test_the_host_reads_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

    from efficientbench.model.gpt import stages_on_meta

    if not kernel.has_grouped_mm("cpu"):
        pytest.skip("this torch has no grouped_mm")
    monkeypatch.setattr(MoEAuxLossAutoScaler, "main_loss_backward_scale", None)
    # As on a GPU that multiplies all groups at once.
    monkeypatch.setattr(kernel, "multiplies_at_once", lambda device_type, dtype: True)
    # Tensors on the meta device have no values: where the host needs one, torch raises.
    [model] = stages_on_meta(tiny("moe_1.5Bx8", "training.dtype=bf16", "model.moe.auxiliary_loss=1"))
    layer = model.decoder.layers[0].mlp
    for parameter in layer.experts.parameters():
        parameter.main_grad = torch.empty_like(parameter, dtype=torch.float32)
    x = torch.empty(16, 2, 48, dtype=torch.bfloat16, device="meta", requires_grad=True)
    with pytest.raises(RuntimeError):
        x.sum().item()
    out, _ = layer(x)
    assert out.shape == x.shape
    # All that the backward pass needs on the host left the device in the forward pass.
    monkeypatch.setattr(kernel.RowGroups, "sizes", [8] * 8)
    out.sum().backward()
    assert x.grad is not None
    assert layer.router.weight.grad is not None
    assert all(parameter.grad_added_to_main_grad for parameter in layer.experts.parameters())


def test_dispatch_on_one_rank_equals_megatrons_all_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    from efficientbench.model.token_dispatch import LocalDispatcher

    layer = build(tiny("moe_1.5Bx8", *MIXTRAL_LIKE)).decoder.layers[0].mlp
    assert isinstance(layer.token_dispatcher, LocalDispatcher)
    theirs = token_dispatcher.MoEAlltoAllTokenDispatcher(
        8, list(range(8)), layer.config, ProcessGroupCollection.use_mpu_process_groups()
    )
    x, grad = (torch.randn(16, 2, 48, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))

    def results() -> list[torch.Tensor]:
        layer.zero_grad()
        for parameter in layer.experts.parameters():
            parameter.main_grad = torch.zeros_like(parameter)
        leaf = x.clone().requires_grad_()
        out, _ = layer(leaf)
        out.backward(grad)
        return [
            out,
            leaf.grad,
            layer.router.weight.grad.clone(),
            *(parameter.main_grad for parameter in layer.experts.parameters()),
        ]

    ours = results()
    layer.token_dispatcher = theirs
    monkeypatch.setattr(token_dispatcher, "permute", moe_utils.permute)
    for actual, expected in zip(ours, results(), strict=True):
        assert torch.equal(actual, expected)
