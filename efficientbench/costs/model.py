"""Formulas for a model's parameters, FLOPs and cache, without torch; a variant's own are in its declaration.

A function raises UndeclaredError where the declaration lacks a formula that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.variant import UndeclaredError
from efficientbench.config.training import Recompute

FLOAT32_BYTES = 4
COUNTER_BYTES = 16
"""Bytes of a sequence's two counters in a cache: the tokens that it has, and the tokens that it gets."""
STATE_TOKENS = (2048, 8192, 32_768, 131_072)
"""Lengths at which plans show the state of a sequence."""


@dataclass(frozen=True)
class Parameters:
    """Parameters of the whole model by part. The vocabulary is unpadded."""

    embedding: int
    """Parameters of the embedding's table, and of the output projection's where that has its own."""
    position: int
    attention: int
    feed_forward: int
    norms: int
    idle: int = 0
    """Parameters in `feed_forward` of the experts that a token does not visit."""

    @property
    def total(self) -> int:
        return self.embedding + self.position + self.attention + self.feed_forward + self.norms

    @property
    def active(self) -> int:
        """Parameters that take part in computing a token; all of them in a dense model."""
        return self.total - self.idle


def count_parameters(model: ModelConfig) -> Parameters:
    """Count a model's parameters by part; for GQA as many as `transformers.Qwen2ForCausalLM` has in these shapes."""
    own, views = model.own_view, model.counted_views
    return Parameters(
        embedding=model.vocabulary_tables(first=True, last=True) * model.vocab_size * model.hidden_size,
        position=own.position_variant.costs.parameters(own),
        attention=sum(count * view.attention_variant.costs.parameters(view) for view, count in views),
        feed_forward=sum(count * _feed_forward(view) for view, count in views),
        norms=sum(count * view.layer_norm_parameters for view, count in views)
        + model.outer_norm_parameters(first=True, last=True),
        idle=sum(count * _idle(view) for view, count in views),
    )


def layer_parameters(model: ModelConfig) -> int:
    """Count the parameters of one layer."""
    return model.attention_variant.costs.parameters(model) + _feed_forward(model) + model.layer_norm_parameters


def _feed_forward(model: ModelConfig) -> int:
    experts = model.moe.experts if model.moe else 0
    return model.router_parameters + (experts + model.unrouted_networks) * model.feed_forward_parameters


def _idle(model: ModelConfig) -> int:
    return (model.moe.experts - model.moe.top_k) * model.feed_forward_parameters if model.moe else 0


def layer_matmul_flops(model: ModelConfig) -> int:
    """Count the forward FLOPs per token of one layer's projections, feed-forward and router."""
    feed_forward = model.computing_networks * model.feed_forward_parameters
    return model.attention_variant.costs.projection_flops(model) + 2 * (feed_forward + model.router_parameters)


@dataclass(frozen=True)
class Flops:
    """FLOPs per token in matmuls, with the logits and without the embedding's lookup. A multiply-add is two."""

    forward: int
    """Forward FLOPs with causal attention counted halved: the work that has to be done (Megatron's convention)."""
    recomputed: int
    """Forward FLOPs that the backward pass computes again."""
    forward_full_square: int
    """Forward FLOPs with attention over the full square, as PaLM (arXiv 2204.02311, appendix B), nanochat and
    torchtitan count."""

    @property
    def training(self) -> int:
        """Forward FLOPs, and twice as many backward; without recomputation."""
        return 3 * self.forward

    @property
    def training_full_square(self) -> int:
        return 3 * self.forward_full_square

    @property
    def training_hardware(self) -> int:
        """FLOPs that the device computes: `training` and `recomputed`."""
        return self.training + self.recomputed


def flops_per_token(model: ModelConfig, seq_len: int, recompute: Recompute = "none") -> Flops:
    """Count FLOPs per token in sequences of `seq_len` tokens, averaged over their positions."""
    logits = 2 * model.hidden_size * model.vocab_size
    linear, square, causal = logits, 0, 0
    for view, count in model.counted_views:
        costs = view.attention_variant.costs
        linear += count * layer_matmul_flops(view)
        square += count * costs.score_flops(view, seq_len)
        causal += count * costs.causal_score_flops(view, seq_len)
    forward = linear + causal
    recomputed = {"none": 0, "selective": causal, "full": forward - logits}[recompute]
    return Flops(forward=forward, recomputed=recomputed, forward_full_square=linear + square)


def over_documents(lengths: Mapping[int, int], per_token: Callable[[int], float]) -> float:
    """Return the mean over all tokens of a figure per token, where attention ends with documents.

    Args:
        lengths: length → number of documents, or parts of documents, of that many tokens; not empty.
        per_token: sequence length → the figure, averaged over the sequence's positions.
    """
    tokens = sum(length * count for length, count in lengths.items())
    return sum(length * count * per_token(length) for length, count in lengths.items()) / tokens


def dense_keys_per_query(seq_len: float) -> float:
    """Return the mean number of keys that a query of causal attention reads: its own and all before it."""
    return (seq_len + 1) / 2


def keys_read_per_query(model: ModelConfig, seq_len: int) -> float:
    """Return the mean number of keys that a query of this model's attention reads, over queries and layers."""
    read = [(view.attention_variant.costs.keys_read_per_query(view, seq_len), n) for view, n in model.counted_views]
    # The sum and the quotient would round the mean of equal numbers.
    return read[0][0] if len(read) == 1 else sum(keys * count for keys, count in read) / model.layers


def kv_cache_bytes_per_token(model: ModelConfig, dtype: str) -> int:
    """Count the bytes that decoding keeps for each token, over all layers."""
    elements = sum(count * view.attention_variant.costs.cached(view) for view, count in model.counted_views)
    return elements * DTYPE_BYTES[dtype]


def cache_bytes(model: ModelConfig, tokens: int, dtype: str, tp: int = 1) -> int:
    """Count the bytes of a rank's cache for a sequence with room for `tokens` tokens, over all layers.

    Raises UndeclaredError: the attention declares no state, or the positional encoding does not decode.
    """
    total = COUNTER_BYTES
    for view, count in model.counted_views:
        if not view.position_variant.decodes:
            raise UndeclaredError(
                f"model.position.kind={view.position.kind} does not declare that rows can have positions of their own, "
                "and so cannot generate"
            )
        total += count * view.attention_variant.costs.state_bytes(view, tokens, tp, DTYPE_BYTES[dtype])
    return total
