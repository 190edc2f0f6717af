"""Formulas for the FLOPs that kernels compute beyond the model's own, without torch.

They count scores computed again, padding, and hidden keys of selected blocks. They do not count what a kernel computes
at the edge of a causal mask to fill its tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.config.model import MLAConfig, ModelConfig, NSAConfig
from efficientbench.config.schema import Recompute
from efficientbench.costs import nsa
from efficientbench.costs.model import causal_score_flops, flops_per_token


@dataclass(frozen=True)
class AttentionWork:
    """What an attention kernel computes more than its formula."""

    scores_again: bool = True
    """Whether the backward pass computes the scores from queries and keys again, as kernels do that never keep them."""
    pads_values: bool = False
    """Whether values are padded to the width of keys."""
    selects_twice: bool = False
    """Whether NSA's selected branch computes its scores twice in the forward pass."""


@dataclass(frozen=True)
class _Products:
    """One layer's forward FLOPs per token."""

    scores: int
    values: int
    """Of probabilities with values."""


def hardware_flops_per_token(model: ModelConfig, seq_len: int, recompute: Recompute, work: AttentionWork) -> int:
    """Count the FLOPs per token that devices compute in training: the model's, those of recomputation and of `work`."""
    needed, computed = _needed(model, seq_len), _computed(model, seq_len, work)
    forwards = 1 if recompute == "none" else 2
    forward = computed.scores + computed.values - needed.scores - needed.values
    backward = 2 * forward
    if isinstance(model.attention, NSAConfig) and work.selects_twice:
        forward += _selected(model, seq_len)
    if work.scores_again:
        backward += computed.scores
    flops = flops_per_token(model, seq_len, recompute)
    return flops.training_hardware + model.layers * (forwards * forward + backward)


def _needed(model: ModelConfig, seq_len: int) -> _Products:
    """Return the FLOPs over the keys that a query can see."""
    if isinstance(model.attention, MLAConfig):
        mla = model.attention
        key_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        return _Products(model.heads * key_dim * seq_len, model.heads * mla.v_head_dim * seq_len)
    if isinstance(model.attention, NSAConfig):
        return _over_keys(model, nsa.keys_in_sight(model.attention, seq_len).total, seq_len)
    half = causal_score_flops(model, seq_len) // 2
    return _Products(half, half)


def _computed(model: ModelConfig, seq_len: int, work: AttentionWork) -> _Products:
    """Return the FLOPs with padded values and over whole selected blocks."""
    needed = _needed(model, seq_len)
    if isinstance(model.attention, NSAConfig):
        return _over_keys(model, nsa.keys_read(model.attention, seq_len).total, seq_len)
    return _Products(needed.scores, needed.scores) if work.pads_values else needed


def _over_keys(model: ModelConfig, keys: int, seq_len: int) -> _Products:
    flops = 2 * model.heads * model.head_dim * keys // seq_len
    return _Products(flops, flops)


def _selected(model: ModelConfig, seq_len: int) -> int:
    """Count the forward FLOPs per token in the selected branch's scores."""
    assert isinstance(model.attention, NSAConfig)
    return _over_keys(model, nsa.keys_read(model.attention, seq_len).selected, seq_len).scores
