"""Formulas for the memory that generation takes, and for the bytes that a decoding step reads, without torch.

Each raises UndeclaredError where a variant's declaration has no formula that it needs.
"""

from __future__ import annotations

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.registry import attention_of, position_of
from efficientbench.costs.compute import Work, Works
from efficientbench.costs.model import (
    DTYPE_BYTES,
    cache_bytes,
    count_parameters,
    feed_forward_matrices,
    feed_forward_parameters,
    router_parameters,
)

# Formulas for the work of generation on one device, without torch.
#
# Prefill computes the prompts of a batch at once, a decoding step one token of each row. Bytes are those that must be
# read or written once: weights, what the cache holds, not the temporary tensors between operations.


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


def cache_bytes_read(model: ModelConfig, tokens: int, dtype: str) -> int:
    """Count the bytes of a sequence's cache that a decoding step reads, over all layers.

    `tokens` are those of the sequence, the new one included.
    """
    costs = attention_of(model).costs
    elements = costs.cached(model) * tokens if costs.decode_reads is None else costs.decode_reads(model, tokens)
    return model.layers * elements * DTYPE_BYTES[dtype]


def weight_bytes_read(model: ModelConfig, batch: int, dtype: str, experts_touched: float | None = None) -> float:
    """Count the bytes of weights that a decoding step reads: each once, of tables to look up in only the rows.

    `experts_touched` of each layer get a token; None: the model has none.
    """
    counted = count_parameters(model)
    read: float = counted.total
    if not model.tied:
        read -= (model.vocab_size - batch) * model.hidden_size
    if position_of(model).place == "embedding":
        read -= counted.position - min(batch * model.hidden_size, counted.position)
    if model.moe is not None and experts_touched is not None:
        read -= model.layers * (model.moe.experts - experts_touched) * feed_forward_parameters(model)
    return read * DTYPE_BYTES[dtype]


def decode_bytes(
    model: ModelConfig, tokens: int, batch: int, dtype: str, experts_touched: float | None = None
) -> float:
    """Count the bytes that a decoding step has to read: weights once, and the caches of `batch` sequences.

    Source: model bandwidth utilization (MBU) as Databricks defines it, "LLM Inference Performance Engineering: Best
    Practices", 2023; here with the caches of all sequences, and of experts those that get a token.
    """
    return weight_bytes_read(model, batch, dtype, experts_touched) + batch * cache_bytes_read(model, tokens, dtype)


def generation_bytes(
    model: ModelConfig, prompt_tokens: int, new_tokens: int, batch: int, dtype: str, tp: int = 1
) -> int:
    """Estimate the bytes of weights, of the caches of `batch` sequences, and of a layer's tensors for their prompts.

    They are those of one of `tp` ranks that share the model.
    """
    return _weight_bytes(model, dtype, tp) + batch * _sequence_bytes(model, prompt_tokens, new_tokens, dtype, tp)


def largest_batch(
    model: ModelConfig, prompt_tokens: int, new_tokens: int, dtype: str, free_bytes: int, tp: int = 1
) -> int:
    """Return the largest batch for which `generation_bytes` fits; 0: not even the weights and one sequence do."""
    left = free_bytes - _weight_bytes(model, dtype, tp)
    return max(left // _sequence_bytes(model, prompt_tokens, new_tokens, dtype, tp), 0)


def _weight_bytes(model: ModelConfig, dtype: str, tp: int) -> int:
    # Norms and routers, which each rank holds whole too, are too few to count.
    whole = model.layers * attention_of(model).costs.replicated_parameters(model) if tp > 1 else 0
    return ((count_parameters(model).total - whole) // tp + whole) * DTYPE_BYTES[dtype]


def _sequence_bytes(model: ModelConfig, prompt_tokens: int, new_tokens: int, dtype: str, tp: int) -> int:
    """Estimate what a sequence adds: its cache, and for each token of its prompt a layer's inner elements."""
    inner = feed_forward_matrices(model) * model.ffn_hidden_size * (model.moe.top_k if model.moe else 1)
    prompt = prompt_tokens * (inner // tp + 4 * model.hidden_size) * DTYPE_BYTES[dtype]
    return cache_bytes(model, prompt_tokens + new_tokens, dtype, tp) + prompt
