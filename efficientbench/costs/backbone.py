"""Formulas for what the keys of the backbone choose: feed-forward, norms and the vocabulary's tables, without torch."""

from __future__ import annotations

from efficientbench.config.model import ModelConfig
from efficientbench.config.training import Recompute


def feed_forward_matrices(model: ModelConfig) -> int:
    """Count the matrices of a feed-forward layer, which are as many as the inner tensors that it keeps for backward.

    SwiGLU has gate, up and down, and keeps gate, up and their product. ReLU² has up and down, and keeps up and its
    square.
    """
    return 3 if model.activation == "swiglu" else 2


def layer_norm_parameters(model: ModelConfig) -> int:
    """Count the weights of one layer's norms, which every tensor-parallel rank holds whole."""
    return 2 * model.hidden_size + head_norm_parameters(model) if model.norm_weights else 0


def head_norm_parameters(model: ModelConfig) -> int:
    """Count the weights of the norms on one layer's queries and keys."""
    return 2 * model.head_dim if model.qk_norm and model.norm_weights else 0


def outer_norm_parameters(model: ModelConfig, first: bool, last: bool) -> int:
    """Count the weights of the norm before the layers (on the first stage) and of that behind them (on the last)."""
    norms = int(first and model.embedding_norm) + int(last)
    return norms * model.hidden_size if model.norm_weights else 0


def vocabulary_tables(model: ModelConfig, first: bool, last: bool) -> int:
    """Count the tables of a stage: the embedding on the first, the output projection on the last; one if tied."""
    return int(first or last) if model.tied else int(first) + int(last)


def head_norm_saved(model: ModelConfig, tp: int, recompute: Recompute) -> int:
    """Count the elements per token of one layer that a rank keeps because queries and keys are normalized.

    A norm keeps its input. Before the rotation keys are a part of the projection's output, which is kept anyway, and
    queries are copied out of it, unless one group has all heads or each head is a group. Selective recomputation keeps
    normalized keys too; what is normalized after the rotation, it computes again.
    """
    if not model.qk_norm:
        return 0
    heads, groups = model.heads // tp, max(model.key_value_heads // tp, 1)
    if not model.norm_weights:
        return 0 if recompute == "selective" else (heads + groups) * model.head_dim
    copied = 0 if groups in (1, heads) else heads
    return (copied + (groups if recompute == "selective" else 0)) * model.head_dim
