"""Formulas for the work of generation on one device, without torch.

Prefill computes the prompts of a batch at once, a decoding step one token of each row. Bytes are those that must be
read or written once: weights, what the cache holds, not the temporary tensors between operations.
"""

from __future__ import annotations

from efficientbench.config.model import ModelConfig
from efficientbench.config.registry import attention_of
from efficientbench.costs.compute import Work, Works
from efficientbench.costs.generation import cache_bytes_read, weight_bytes_read
from efficientbench.costs.model import (
    DTYPE_BYTES,
    cache_bytes,
    feed_forward_parameters,
    router_parameters,
)


def prefill_work(model: ModelConfig, prompt_tokens: int, rows: int, dtype: str) -> dict[str, Works]:
    """Return the work of prefill, by its kind: prompts of `prompt_tokens` tokens, of which the last gives logits.

    Raises UndeclaredError: the model cannot generate, or its declaration lacks a formula.
    """
    scores = attention_of(model).costs.causal_score_flops(model, prompt_tokens)
    tokens = rows * prompt_tokens
    written = rows * cache_bytes(model, prompt_tokens, dtype)
    return {
        "matmuls": _matmuls(model, tokens, rows, dtype),
        "attention": (Work(tokens * model.layers * scores, written),),
    }


def decode_work(model: ModelConfig, tokens: int, rows: int, dtype: str) -> dict[str, Works]:
    """Return the work of a decoding step, by its kind: each row's next token is its `tokens`-th.

    Raises UndeclaredError: the model cannot generate, or its declaration lacks a formula.
    """
    flops = attention_of(model).costs.decode_flops(model, tokens)
    return {
        "matmuls": _matmuls(model, rows, rows, dtype),
        "attention": (Work(rows * model.layers * flops, rows * cache_bytes_read(model, tokens, dtype)),),
    }


def _matmuls(model: ModelConfig, tokens: int, rows: int, dtype: str) -> Works:
    """Return the layers' projections and feed-forward for all tokens, and the output projection for one of each row."""
    computed = model.moe.top_k if model.moe else 1
    feed_forward = 2 * (computed * feed_forward_parameters(model) + router_parameters(model))
    per_token = model.layers * (attention_of(model).costs.projection_flops(model) + feed_forward)
    table = model.vocab_size * model.hidden_size
    weights = weight_bytes_read(model, tokens, dtype, experts_touched(model, tokens)) - table * DTYPE_BYTES[dtype]
    return Work(tokens * per_token, weights), Work(rows * 2 * table, table * DTYPE_BYTES[dtype])


def experts_touched(model: ModelConfig, tokens: int) -> float | None:
    """Return how many of a layer's E experts get one of the tokens, in expectation: E · (1 − (1 − k / E)^tokens).

    Each token chooses k of them, any k as likely as others: a router that prefers some touches fewer. None: there are
    no experts.
    """
    if model.moe is None:
        return None
    experts = model.moe.experts
    return experts * (1 - (1 - model.moe.top_k / experts) ** tokens)
