"""Formulas for the FLOPs that kernels compute beyond the model's own, without torch.

They count scores computed again, padding, and hidden keys of selected blocks. They do not count what a kernel computes
at the edge of a causal mask to fill its tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.config.model import ModelConfig
from efficientbench.config.registry import attention_of
from efficientbench.config.training import Recompute
from efficientbench.costs.model import flops_per_token


@dataclass(frozen=True)
class AttentionWork:
    """What an attention kernel computes more than its formula."""

    scores_again: bool = True
    """Whether the backward pass computes the scores from queries and keys again, as kernels do that never keep them."""
    pads_values: bool = False
    """Whether values are padded to the width of keys."""
    again: int = 0
    """FLOPs per token of scores that a layer's forward pass computes a second time."""


def hardware_flops_per_token(model: ModelConfig, seq_len: int, recompute: Recompute, work: AttentionWork) -> int:
    """Count the FLOPs per token that devices compute in training: the model's, those of recomputation and of `work`.

    Raises UndeclaredError: the attention's declaration lacks a formula.
    """
    costs = attention_of(model).costs
    needed = costs.products(model, seq_len)
    scores, values = (costs.computed_products or costs.products)(model, seq_len)
    if work.pads_values:
        values = scores
    forwards = 1 if recompute == "none" else 2
    forward = scores + values - sum(needed)
    backward = 2 * forward + (scores if work.scores_again else 0)
    flops = flops_per_token(model, seq_len, recompute)
    return flops.training_hardware + model.layers * (forwards * (forward + work.again) + backward)
