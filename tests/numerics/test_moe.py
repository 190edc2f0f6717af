"""Mixture of experts against transformers' Mixtral, its auxiliary loss against a written formula, its cost."""

from __future__ import annotations

import pytest
import torch
from support.configs import tiny
from support.mixtral import same_weights, to_mixtral

from efficientbench import cost
from efficientbench.config.schema import ModelConfig, RunConfig
from efficientbench.model.kernels import grouped_mm as kernel

pytestmark = pytest.mark.usefixtures("single_rank")

# Weights of this size give logits that are far apart and gradients that reach every expert.
MIXTRAL_LIKE = ["model.attention.qkv_bias=false", "model.init_std=0.2"]


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, relative to the largest expected value."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def auxiliary_losses(router_logits: list[torch.Tensor], model: ModelConfig) -> list[torch.Tensor]:
    """Each layer's load-balancing loss E · Σ_e f_e · P_e (arXiv 2101.03961, equation 4): f_e the share of choices that
    fell on expert e, P_e its mean probability over all experts. logits [tokens, E]."""
    assert model.moe is not None
    losses = []
    for logits in router_logits:
        probabilities = logits.softmax(dim=-1)
        chosen = torch.zeros_like(logits)
        for token, row in enumerate(logits):
            for expert in sorted(range(model.moe.experts), key=lambda e, row=row: -row[e].item())[: model.moe.top_k]:
                chosen[token, expert] = 1
        share = chosen.mean(dim=0) / model.moe.top_k
        losses.append(model.moe.experts * (share * probabilities.mean(dim=0)).sum())
    return losses


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("auxiliary_loss", [0, 10])
def test_logits_loss_and_gradients_equal_mixtral(
    auxiliary_loss: int, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from efficientbench.model.gpt import build_stage
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.optimizer import wrap_data_parallel

    if not grouped:
        monkeypatch.setattr(kernel, "has_grouped_mm", lambda device_type: False)
    config = tiny("moe_1.5Bx8", *MIXTRAL_LIKE, f"model.moe.auxiliary_loss={auxiliary_loss}")
    model = build_stage(config, torch.device("cpu"))
    parameters = global_parameters(model)
    generator = torch.Generator().manual_seed(1)
    for parameter in parameters.values():
        if parameter.dim() == 1:  # norms of one would hide mistakes
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    mixtral = same_weights({key: parameter.detach().clone() for key, parameter in parameters.items()}, config.model)
    logits_of_routers: list[torch.Tensor] = []
    for layer in mixtral.model.layers:
        layer.mlp.gate.register_forward_hook(lambda gate, inputs, outputs: logits_of_routers.append(outputs[0]))
    sequence = torch.randint(config.model.vocab_size, (2, config.training.seq_len + 1), generator=generator)
    tokens, labels = sequence[:, :-1], sequence[:, 1:]

    expected = mixtral(tokens).logits
    expected_loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum")
    auxiliary = torch.stack(auxiliary_losses(logits_of_routers, config.model))
    (expected_loss + auxiliary_loss * auxiliary.sum()).backward()
    wrapped = wrap_data_parallel(model, config)
    logits = wrapped(tokens)
    model.take_routing()
    loss = wrapped(tokens, labels, torch.ones_like(labels))
    loss.backward()

    assert relative_error(logits, expected) < 1e-5
    assert relative_error(loss, expected_loss) < 1e-5
    counted = model.take_routing()
    assert counted is not None
    if auxiliary_loss:
        assert relative_error(counted[:, 0], auxiliary) < 1e-5
    chosen = [row.topk(2).indices.flatten().bincount(minlength=8).tolist() for row in logits_of_routers]
    assert counted[:, 1:].tolist() == chosen
    gradients = to_mixtral({key: parameter.main_grad for key, parameter in parameters.items()}, config.model)
    for key, oracle in mixtral.named_parameters():
        assert relative_error(gradients[key], oracle.grad) < 1e-5, key


def test_a_later_token_leaves_earlier_logits() -> None:
    from efficientbench.model.gpt import build_stage

    config = tiny("moe_1.5Bx8", "model.init_std=0.2")
    model = build_stage(config, torch.device("cpu")).eval()
    tokens = torch.randint(config.model.vocab_size, (1, 16), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[0, 9] += 1
    with torch.no_grad():
        before, after = model(tokens)[0], model(changed)[0]
    # Not bit for bit: an expert's matmul has other rows beside a token's.
    assert relative_error(after[:9], before[:9]) < 1e-6
    assert relative_error(after[9:], before[9:]) > 1e-3


@pytest.mark.parametrize("name", ["moe_0.5Bx8", "moe_1.5Bx8"])
def test_parameters_and_flops_are_those_of_the_cost_formulas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from efficientbench.config.load import resolve
    from efficientbench.model.gpt import build_stage

    # The counter knows mm, not grouped_mm.
    monkeypatch.setattr(kernel, "has_grouped_mm", lambda device_type: False)
    config: RunConfig = resolve(name, True, ["training.dtype=fp32", "training.seq_len=64"])
    model = build_stage(config, torch.device("cpu"))
    assert sum(parameter.numel() for parameter in model.parameters()) == cost.parameters(config.model).total
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 64, dtype=torch.long))
    flops = cost.flops_per_token(config.model, 64)
    scores = config.model.layers * cost.ATTENTION["gqa"].score_flops(config.model, 64)
    # Nor does it know the CPU's fused attention.
    assert counter.get_total_flops() == 64 * (flops.forward_full_square - scores)


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_matmul_is_one_matmul_for_each_group(
    dtype: torch.dtype, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not grouped:
        monkeypatch.setattr(kernel, "has_grouped_mm", lambda device_type: False)
    elif not kernel.has_grouped_mm("cpu"):
        pytest.skip("this torch has no grouped_mm")
    generator = torch.Generator().manual_seed(1)
    sizes = [0, 5, 1, 0, 7, 0]
    weights = torch.randn(6, 8, 16, generator=generator, dtype=dtype)
    # One row for all, as the gradient of a sum is.
    x = torch.randn(1, 8, generator=generator, dtype=dtype).expand(13, 8)
    expected = torch.cat([rows @ weight for rows, weight in zip(x.split(sizes), weights, strict=True)])
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-6
    assert relative_error(kernel.grouped_mm(x, weights, sizes), expected) < tolerance
    gradient = torch.ones(6, 16, 8)
    kernel.accumulate_weight_gradient(x, expected, sizes, gradient)
    oracle = torch.stack([g.t() @ rows for g, rows in zip(expected.split(sizes), x.split(sizes), strict=True)]) + 1
    assert relative_error(gradient, oracle.float()) < tolerance
    assert torch.equal(gradient[0], torch.ones(16, 8))
