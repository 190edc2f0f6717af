"""Records of generation as a GPU would give them: made up, plausible, and consistent with each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from efficientbench.metrics.records.generation.generation import GenerationRecord, GenerationRow, Phase

BYTES_PER_TOKEN = {"gqa": 12_288, "mqa": 6_144, "mla": 6_912, "nsa": 13_056}
"""Variant → bytes of its cache for a token."""


def phase(time_s: float, tokens: int, joules: float | None, noise: float = 0.01, **given: Any) -> Phase:
    """A phase of 5 requests with steps of `time_s`, of `tokens` each, for `joules` a token."""
    absent = {"amu_fraction": "no capacity", "peak_memory_allocated_bytes": "no allocator"}
    if joules is None:
        names = ("energy_j", "energy_j_per_token", "energy_scope", "energy_source", "aec_w")
        absent |= dict.fromkeys(names, "no sensor of energy")
    figures: dict[str, Any] = {
        "repeats": 5,
        "steps": 50,
        "time_s": time_s,
        "time_s_ci_low": time_s * (1 - noise),
        "time_s_ci_high": time_s * (1 + noise),
        "time_s_p50": time_s,
        "time_s_p95": time_s * 1.1,
        "tokens_per_s": tokens / time_s,
        "amu_gb": 9.5,
        "pcu": 0.8,
        "aec_w": joules and joules * tokens / time_s,
        "energy_j": joules and joules * tokens * 50,
        "energy_j_per_token": joules,
        "energy_scope": None if joules is None else "gpu",
        "energy_source": None if joules is None else "counter",
        "device_scope": "gpu",
        "memory_kind": "driver",
        "peak_memory_device_bytes": 10_000_000_000,
        "window_s": time_s * 50,
        "time_percentiles_s": [time_s] * 101,
        "unavailable": absent,
    }
    return Phase(**figures | given)


def row(variant: str, prompt_tokens: int, batch: int, joules: float | None = 0.02, **given: Any) -> GenerationRow:
    """A combination with 64 new tokens, whose step reads weights and cache at 1 TB/s."""
    cache = BYTES_PER_TOKEN[variant] * (prompt_tokens + 64)
    needed = 1e9 + batch * cache
    prefill = phase(1e-6 * batch * prompt_tokens, batch * prompt_tokens, None if joules is None else joules / 50)
    figures: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "batch": batch,
        "max_new_tokens": 64,
        "ttft_s": 1e-6 * batch * prompt_tokens + 1e-3,
        "ttft_s_p50": 1e-6 * batch * prompt_tokens + 1e-3,
        "ttft_s_p95": 1.2e-6 * batch * prompt_tokens + 1e-3,
        "cache_bytes": cache,
        "cache_bytes_per_token": float(BYTES_PER_TOKEN[variant]),
        "bytes_needed": needed,
        "bytes_read": 1.1 * needed,
        "bandwidth_utilization": 0.3,
        "bandwidth_utilization_read": 0.33,
        "unavailable": {"experts_touched": "the model has no experts"},
        "prefill": prefill,
        "decode": phase(needed / 1e12, batch, None if joules is None else joules / batch),
    }
    return GenerationRow(**figures | given)


def failed_row(prompt_tokens: int, batch: int, reason: str) -> GenerationRow:
    """A combination that could not be measured."""
    return GenerationRow(prompt_tokens=prompt_tokens, batch=batch, max_new_tokens=64, failure=reason)


def generation(variant: str, size: str = "1.5B", rows: Sequence[GenerationRow] = (), **given: Any) -> GenerationRecord:
    """The record of a model with these rows, or with prompts of 128 and 2,048 tokens in batches of 1 and 8."""
    made = list(rows) or [row(variant, prompt, batch) for prompt in (128, 2048, 16_384) for batch in (1, 8)]
    facts: dict[str, Any] = {
        "run": f"{variant}_{size}",
        "variant": variant,
        "size": size,
        "seed": 1234,
        "devices": 1,
        "device_name": "NVIDIA H100 80GB HBM3",
        "dtype": "bf16",
        "weights": "random",
        "decode_path": "eager, torch matmuls over the cache",
        "status": "completed",
        "started_at": "2026-01-02T03:04:05+00:00",
        "duration_s": 60.0,
        "rows": made,
    }
    return GenerationRecord(**facts | given)
