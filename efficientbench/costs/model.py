"""What a model costs: parameters, FLOPs and cache, as pure formulas; no torch. Memory has memory_cost.py.

H = hidden size, F = feed-forward width, D = head dimension, V = vocabulary, S = sequence, t = tensor-parallel ranks.
A new positional encoding adds one entry to POSITION below, found by its `kind`; attention has attention_cost.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from efficientbench.config.model import LearnableAbsoluteConfig, ModelConfig, RelativeConfig
from efficientbench.config.schema import Recompute
from efficientbench.costs.attention import ATTENTION

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class PositionCost:
    """A positional encoding's formulas."""

    parameters: Callable[[ModelConfig], int]
    rank_parameters: Callable[[ModelConfig, int, bool], int]
    """(model, t, whether the stage is the first) → parameters on one rank."""


WITHOUT_PARAMETERS = PositionCost(parameters=lambda model: 0, rank_parameters=lambda model, tp, first: 0)


def _learnable_absolute_parameters(model: ModelConfig) -> int:
    assert isinstance(model.position, LearnableAbsoluteConfig)
    return model.position.max_seq_len * model.hidden_size


def _relative_parameters(model: ModelConfig) -> int:
    assert isinstance(model.position, RelativeConfig)
    return model.position.buckets * model.heads


POSITION = {
    "rope": WITHOUT_PARAMETERS,
    "absolute": WITHOUT_PARAMETERS,
    "learnable_absolute": PositionCost(
        parameters=_learnable_absolute_parameters,
        rank_parameters=lambda model, tp, first: _learnable_absolute_parameters(model) if first else 0,
    ),
    "relative": PositionCost(
        parameters=_relative_parameters,
        rank_parameters=lambda model, tp, first: _relative_parameters(model) // tp,
    ),
    "alibi": WITHOUT_PARAMETERS,
    "none": WITHOUT_PARAMETERS,
}


@dataclass(frozen=True)
class Parameters:
    """Parameters of the whole model, vocabulary unpadded, by part. Input and output embedding are one."""

    embedding: int
    position: int
    attention: int
    feed_forward: int
    norms: int
    idle: int = 0
    """Of `feed_forward`: those of the experts that a token does not go to."""

    @property
    def total(self) -> int:
        return self.embedding + self.position + self.attention + self.feed_forward + self.norms

    @property
    def active(self) -> int:
        """Parameters that compute for each token; all of them in a dense model."""
        return self.total - self.idle


def parameters(model: ModelConfig) -> Parameters:
    """Parameters by part; equal to `transformers.Qwen2ForCausalLM`'s with the same shapes."""
    moe = model.moe
    feed_forward = router_parameters(model) + _feed_forward_copies(model) * feed_forward_parameters(model)
    idle = (moe.experts - moe.top_k) * feed_forward_parameters(model) if moe else 0
    return Parameters(
        embedding=model.vocab_size * model.hidden_size,
        position=POSITION[model.position.kind].parameters(model),
        attention=model.layers * ATTENTION[model.attention.kind].parameters(model),
        feed_forward=model.layers * feed_forward,
        norms=(2 * model.layers + 1) * model.hidden_size,
        idle=model.layers * idle,
    )


def feed_forward_parameters(model: ModelConfig) -> int:
    """Of one dense layer or one expert."""
    return 3 * model.hidden_size * model.ffn_hidden_size


def _feed_forward_copies(model: ModelConfig) -> int:
    """Dense layers or experts in one layer's place."""
    return model.moe.experts if model.moe else 1


def router_parameters(model: ModelConfig) -> int:
    """Of one layer; none in a dense model."""
    return model.hidden_size * model.moe.experts if model.moe else 0


@dataclass(frozen=True)
class Flops:
    """FLOPs per token. A multiply-add is two; matmuls only, logits included, the embedding's lookup not."""

    forward: int
    """Causal attention counted halved: the work that has to be done (Megatron's convention)."""
    recomputed: int
    """Of `forward`, what the backward pass computes again."""
    forward_full_square: int
    """Attention over the full square, as PaLM (arXiv 2204.02311, appendix B), nanochat and torchtitan count."""

    @property
    def training(self) -> int:
        """Forward, and twice as much backward; no recomputation."""
        return 3 * self.forward

    @property
    def training_full_square(self) -> int:
        return 3 * self.forward_full_square

    @property
    def training_hardware(self) -> int:
        """What the device computes: `training` and what is recomputed."""
        return self.training + self.recomputed


def flops_per_token(model: ModelConfig, seq_len: int, recompute: Recompute = "none") -> Flops:
    """FLOPs per token at sequences of `seq_len` tokens, averaged over their positions."""
    attention = ATTENTION[model.attention.kind]
    computed = model.moe.top_k if model.moe else 1
    feed_forward = 2 * (computed * feed_forward_parameters(model) + router_parameters(model))
    logits = 2 * model.hidden_size * model.vocab_size
    linear = model.layers * (attention.projection_flops(model) + feed_forward) + logits
    square = attention.score_flops(model, seq_len)
    causal = causal_score_flops(model, seq_len)
    forward = linear + model.layers * causal
    recomputed = {"none": 0, "selective": model.layers * causal, "full": forward - logits}[recompute]
    return Flops(forward=forward, recomputed=recomputed, forward_full_square=linear + model.layers * square)


def causal_score_flops(model: ModelConfig, seq_len: int) -> int:
    """Forward FLOPs per token of one layer in scores and their product with the values, over the keys in sight."""
    attention = ATTENTION[model.attention.kind]
    if attention.causal_score_flops:
        return attention.causal_score_flops(model, seq_len)
    return attention.score_flops(model, seq_len) // 2


def dense_keys_per_query(seq_len: int) -> float:
    """Mean number of keys that a query of causal attention reads: all in its past, itself included."""
    return (seq_len + 1) / 2


def keys_read_per_query(model: ModelConfig, seq_len: int) -> float:
    """Mean number of keys that a query of this model's attention reads."""
    read = ATTENTION[model.attention.kind].keys_read_per_query
    return read(model, seq_len) if read else dense_keys_per_query(seq_len)


def kv_cache_bytes_per_token(model: ModelConfig, dtype: str) -> int:
    """Bytes that decoding keeps for each token, over all layers."""
    return model.layers * ATTENTION[model.attention.kind].cached(model) * BYTES[dtype]
