"""Formulas for the memory that generation takes, and for its work on one device, without torch.

Prefill computes the prompts of a batch at once, a decoding step one token of each row. Bytes of work count what must be
read or written once: weights and cache, not the temporary tensors between operations.

A function raises UndeclaredError where a variant's declaration lacks a formula that it needs. Of every function, `form`
is that of quantized weights; None: all are in `dtype`.
"""

from __future__ import annotations

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.architecture.model import ModelConfig
from efficientbench.costs.compute import Work, Works
from efficientbench.costs.model import cache_bytes, count_parameters, layer_matmul_flops
from efficientbench.costs.quantization import saved_bytes, weight_bytes
from efficientbench.devices.quantized import Form


def prefill_work(
    model: ModelConfig, prompt_tokens: int, rows: int, dtype: str, form: Form | None = None
) -> dict[str, Works]:
    """Return the work of prefill by kind, for prompts of `prompt_tokens` tokens, of which the last gives logits.

    Raises UndeclaredError: the model cannot generate, or its declaration lacks a formula.
    """
    scores = sum(
        count * view.attention_variant.costs.causal_score_flops(view, prompt_tokens)
        for view, count in model.counted_views
    )
    tokens = rows * prompt_tokens
    written = rows * cache_bytes(model, prompt_tokens, dtype)
    return {
        "matmuls": _matmuls(model, tokens, rows, dtype, form),
        "attention": (Work(tokens * scores, written),),
    }


def decode_work(model: ModelConfig, tokens: int, rows: int, dtype: str, form: Form | None = None) -> dict[str, Works]:
    """Return the work of a decoding step by kind, where each row's next token is its `tokens`-th.

    Raises UndeclaredError: the model cannot generate, or its declaration lacks a formula.
    """
    flops = sum(count * view.attention_variant.costs.decode_flops(view, tokens) for view, count in model.counted_views)
    return {
        "matmuls": _matmuls(model, rows, rows, dtype, form),
        "attention": (Work(rows * flops, rows * cache_bytes_read(model, tokens, dtype)),),
    }


def _matmuls(model: ModelConfig, tokens: int, rows: int, dtype: str, form: Form | None) -> Works:
    """Return the work of the layers' matmuls for all tokens, and of the output projection for one token of each row."""
    table = model.vocab_size * model.hidden_size
    weights = weight_bytes_read(model, tokens, dtype, experts_touched(model, tokens), form) - table * DTYPE_BYTES[dtype]
    flops = tokens * sum(count * layer_matmul_flops(view) for view, count in model.counted_views)
    return Work(flops, weights), Work(rows * 2 * table, table * DTYPE_BYTES[dtype])


def experts_touched(model: ModelConfig, tokens: int) -> float | None:
    """Return the expected number of a layer's E experts that get a token: E · (1 − (1 − k / E)^tokens).

    Each token chooses k experts, all choices equally likely: a router that prefers some experts touches fewer. Returns
    None for a dense model.
    """
    if model.moe is None:
        return None
    experts = model.moe.experts
    return experts * (1 - (1 - model.moe.top_k / experts) ** tokens)


def cache_bytes_read(model: ModelConfig, tokens: int, dtype: str) -> int:
    """Count the bytes of a sequence's cache that a decoding step reads, and of a recurrent state also writes.

    They are those of all layers. `tokens` is the sequence's length, the new token included.
    """
    read, element_bytes = 0, DTYPE_BYTES[dtype]
    for view, count in model.counted_views:
        costs = view.attention_variant.costs
        if costs.decode_bytes is not None:
            read += count * costs.decode_bytes(view, tokens, element_bytes)
        else:
            own = costs.cached(view) * tokens if costs.decode_reads is None else costs.decode_reads(view, tokens)
            read += count * own * element_bytes
    return read


def weight_bytes_read(
    model: ModelConfig, batch: int, dtype: str, experts_touched: float | None = None, form: Form | None = None
) -> float:
    """Count the bytes of weights that a decoding step reads: each weight once, and of lookup tables only the rows.

    `experts_touched` is the number of a layer's experts that get a token; None: the model has no experts.
    """
    counted = count_parameters(model)
    read: float = counted.total
    if not model.tied:
        read -= (model.vocab_size - batch) * model.hidden_size
    if model.own_view.position_variant.place == "embedding":
        read -= counted.position - min(batch * model.hidden_size, counted.position)
    if model.moe is not None and experts_touched is not None:
        for view, count in model.counted_views:
            if view.moe is not None:
                read -= count * (model.moe.experts - experts_touched) * view.feed_forward_parameters
    saved = 0.0 if form is None else saved_bytes(model, dtype, form.bytes, experts_touched)
    return read * DTYPE_BYTES[dtype] - saved


def decode_bytes(
    model: ModelConfig,
    tokens: int,
    batch: int,
    dtype: str,
    experts_touched: float | None = None,
    form: Form | None = None,
) -> float:
    """Count the bytes that a decoding step has to read: weights once, and the caches of `batch` sequences.

    Source: model bandwidth utilization (MBU) as Databricks defines it, "LLM Inference Performance Engineering: Best
    Practices", 2023; here with the caches of all sequences, and only the experts that get a token.
    """
    weights = weight_bytes_read(model, batch, dtype, experts_touched, form)
    return weights + batch * cache_bytes_read(model, tokens, dtype)


def generation_bytes(
    model: ModelConfig,
    prompt_tokens: int,
    new_tokens: int,
    batch: int,
    dtype: str,
    tp: int = 1,
    form: Form | None = None,
) -> int:
    """Estimate the bytes of weights, of the caches of `batch` sequences, and of a layer's tensors for their prompts.

    The estimate is for one of `tp` ranks that share the model.
    """
    return weight_bytes(model, dtype, form, tp) + batch * _sequence_bytes(model, prompt_tokens, new_tokens, dtype, tp)


def largest_batch(
    model: ModelConfig,
    prompt_tokens: int,
    new_tokens: int,
    dtype: str,
    free_bytes: int,
    tp: int = 1,
    form: Form | None = None,
) -> int:
    """Return the largest batch for which `generation_bytes` fits; 0: not even the weights and one sequence fit."""
    left = free_bytes - weight_bytes(model, dtype, form, tp)
    return max(left // _sequence_bytes(model, prompt_tokens, new_tokens, dtype, tp), 0)


def _sequence_bytes(model: ModelConfig, prompt_tokens: int, new_tokens: int, dtype: str, tp: int) -> int:
    """Estimate the bytes of a sequence: its cache, and a layer's inner elements for each token of its prompt."""
    widest = max(view.ffn_hidden_size * view.computing_networks for view in model.views.values())
    inner = model.feed_forward_matrices * widest
    prompt = prompt_tokens * (inner // tp + 4 * model.hidden_size) * DTYPE_BYTES[dtype]
    return cache_bytes(model, prompt_tokens + new_tokens, dtype, tp) + prompt
