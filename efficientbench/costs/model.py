"""Formulas for a model's parameters, FLOPs and cache, without torch; a variant's own are in its declaration.

A function raises UndeclaredError where the declaration lacks a formula that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.registry import attention_of, position_of
from efficientbench.architecture.variant import UndeclaredError
from efficientbench.config.training import Recompute
from efficientbench.costs.layers import over_layers


def feed_forward_matrices(model: ModelConfig) -> int:
    """Count the matrices of a feed-forward layer; it keeps as many inner tensors for the backward pass.

    SwiGLU has gate, up and down, and keeps gate, up and their product. ReLU² has up and down, and keeps up and its
    square.
    """
    return 3 if model.activation == "swiglu" else 2


def layer_norm_parameters(model: ModelConfig) -> int:
    """Count the weights of one layer's norms, which every tensor-parallel rank holds in full."""
    return 2 * model.hidden_size + head_norm_parameters(model) if model.norm_weights else 0


def head_norm_parameters(model: ModelConfig) -> int:
    """Count the weights of the norms on one layer's queries and keys."""
    return 2 * model.head_dim if model.qk_norm and model.norm_weights else 0


def outer_norm_parameters(model: ModelConfig, first: bool, last: bool) -> int:
    """Count the weights of the norm before the layers (on the first stage) and of the final norm (on the last)."""
    norms = int(first and model.embedding_norm) + int(last)
    return norms * model.hidden_size if model.norm_weights else 0


def vocabulary_tables(model: ModelConfig, first: bool, last: bool) -> int:
    """Count a stage's vocabulary tables: the embedding on the first, the output projection on the last; one if tied."""
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
    own = model.own_view
    return Parameters(
        embedding=vocabulary_tables(model, first=True, last=True) * model.vocab_size * model.hidden_size,
        position=position_of(own).costs.parameters(own),
        attention=over_layers(model, lambda view: attention_of(view).costs.parameters(view)),
        feed_forward=over_layers(model, _feed_forward),
        norms=over_layers(model, layer_norm_parameters) + outer_norm_parameters(model, first=True, last=True),
        idle=over_layers(model, _idle),
    )


def layer_parameters(model: ModelConfig) -> int:
    """Count the parameters of one layer."""
    return attention_of(model).costs.parameters(model) + _feed_forward(model) + layer_norm_parameters(model)


def _feed_forward(model: ModelConfig) -> int:
    experts = model.moe.experts if model.moe else 0
    return router_parameters(model) + (experts + model.unrouted_networks) * feed_forward_parameters(model)


def _idle(model: ModelConfig) -> int:
    return (model.moe.experts - model.moe.top_k) * feed_forward_parameters(model) if model.moe else 0


def feed_forward_parameters(model: ModelConfig) -> int:
    """Count the parameters of one dense feed-forward layer or one expert."""
    return feed_forward_matrices(model) * model.hidden_size * model.ffn_hidden_size


def router_parameters(model: ModelConfig) -> int:
    """Count the router parameters of one layer; 0 in a dense model."""
    return model.hidden_size * model.moe.experts if model.moe else 0


def layer_matmul_flops(model: ModelConfig) -> int:
    """Count the forward FLOPs per token of one layer's projections, feed-forward and router."""
    feed_forward = model.computing_networks * feed_forward_parameters(model)
    return attention_of(model).costs.projection_flops(model) + 2 * (feed_forward + router_parameters(model))


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
    linear = over_layers(model, layer_matmul_flops) + logits
    square = over_layers(model, lambda view: attention_of(view).costs.score_flops(view, seq_len))
    causal = over_layers(model, lambda view: attention_of(view).costs.causal_score_flops(view, seq_len))
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
    read = [(attention_of(view).costs.keys_read_per_query(view, seq_len), n) for view, n in model.counted_views]
    # The sum and the quotient would round the mean of equal numbers.
    return read[0][0] if len(read) == 1 else sum(keys * count for keys, count in read) / model.layers


def kv_cache_bytes_per_token(model: ModelConfig, dtype: str) -> int:
    """Count the bytes that decoding keeps for each token, over all layers."""
    return over_layers(model, lambda view: attention_of(view).costs.cached(view)) * DTYPE_BYTES[dtype]


def cache_bytes(model: ModelConfig, tokens: int, dtype: str, tp: int = 1) -> int:
    """Count the bytes of a rank's cache for a sequence with room for `tokens` tokens, over all layers.

    Raises UndeclaredError: the attention declares no state, or the positional encoding does not decode.
    """
    for view in model.views.values():
        if not position_of(view).decodes:
            raise UndeclaredError(
                f"model.position.kind={view.position.kind} does not declare that rows can have positions of their own, "
                "and so cannot generate"
            )

    def state_bytes(view: ModelConfig) -> int:
        return attention_of(view).costs.state_bytes(view, tokens, tp, DTYPE_BYTES[dtype])

    return over_layers(model, state_bytes) + COUNTER_BYTES
