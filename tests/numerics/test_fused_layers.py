"""Layers with fused parts, whose second norm adds the attention's output, beside Megatron's order of parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracles.oracle import build, relative_error, text
from support.configs import BACKBONE, tiny

from efficientbench.config.schema import RunConfig

pytestmark = pytest.mark.usefixtures("single_rank")

CASES = {
    "gqa_1.5B": [],
    "gqa_1.5B, every key of the backbone": BACKBONE,
    "gqa_1.5B, recomputed": ["training.recompute=full"],
    "mla_1.5B": [],
    "moe_1.5Bx8": [],
    "nanochat_d12": [],
}


def step(config: RunConfig) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """The loss, all gradients by global names, and how many norms of the pass add a residual."""
    from efficientbench.model.initial_weights import global_parameters
    from efficientbench.training.update.optimizer import wrap_data_parallel

    model, sequence = build(config), text(config, config.training.seq_len + 1)
    wrapped = wrap_data_parallel(model, config)
    loss = wrapped(sequence[:, :-1], sequence[:, 1:], torch.ones_like(sequence[:, 1:]))
    adding = nodes(loss.grad_fn).count("FusedSumAndNormBackward")
    loss.backward()
    gradients = {name: each.main_grad.clone() for name, each in global_parameters(model).items()}
    return loss.detach(), gradients, adding


def nodes(last: Any) -> list[str]:
    """The names of all nodes of autograd's graph that lead to one."""
    found, waiting = {last}, [last]
    while waiting:
        before = {node for node, _ in waiting.pop().next_functions if node is not None} - found
        found |= before
        waiting += before
    return [node.name() for node in found]


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_match_megatrons_layer(case: str) -> None:
    """The compiler takes seconds, and runs in proofs: here the same functions run without it."""
    found = {}
    for fused in ("false", "true"):
        config = tiny(case.partition(",")[0], "model.init_std=0.2", f"kernels.fused={fused}", *CASES[case])
        with torch.compiler.set_stance("force_eager"):
            found[fused] = step(config)
    (loss, gradients, none), (fused_loss, fused_gradients, adding) = found["false"], found["true"]
    # Layers that are computed again have no nodes of their own before the backward pass.
    assert (none, adding) == (0, 0 if "recomputed" in case else config.model.layers)
    assert relative_error(fused_loss, loss) < 1e-5
    assert fused_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert relative_error(fused_gradients[name], gradient) < 1e-5, name
