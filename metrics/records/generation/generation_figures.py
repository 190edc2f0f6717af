"""The table of figures of generation: each field is a row, from which every record, report and page follows.

A formula's `m` is `PhaseMeasured` or `RowMeasured` of records/generation_facts.py. Time to first token and time per
output token are those of one static batch in this project's own engine, where all prompts arrive at once, and not those
of a server that schedules requests.
"""

from __future__ import annotations

import math

from pydantic import BaseModel

from efficientbench.metrics.formulas import definitions
from efficientbench.metrics.formulas.device_use import Disturbance
from efficientbench.metrics.records.figure import Positive, average, fact, figure
from efficientbench.metrics.records.stored import STRICT

# Unformatted to the end, as in records/figures.py.
# fmt: off

class Phase(BaseModel):
    """Prefill or decoding of one row; a figure is None where `unavailable` has the reason."""

    model_config = STRICT

    repeats: Positive = fact("", "requests that were measured; warm-up is left out")
    steps: Positive = fact("", "measured in them: a forward pass over the prompts, or a new token of each row")
    time_s: float | None = figure("s", "mean time of a step; of decoding: time per output token",
        lambda m: average(m.steps_s), better="lower", known_as="vLLM TPOT, ITL")
    time_s_ci_low: float | None = figure("s", "lower end of its 95 % confidence interval, over the requests",
        lambda m: m.interval[0])
    time_s_ci_high: float | None = figure("s", "upper end of its 95 % confidence interval", lambda m: m.interval[1])
    time_s_p50: float | None = figure("s", "median time of a step", lambda m: definitions.percentile(m.steps_s, 50),
        better="lower")
    time_s_p95: float | None = figure("s", "95th percentile of the time of a step",
        lambda m: definitions.percentile(m.steps_s, 95), better="lower")
    tokens_per_s: float | None = figure("tokens/s", "of all rows: of the prompts, or new ones",
        lambda m: definitions.token_throughput(m.tokens * len(m.steps_s), 1, math.fsum(m.steps_s)), better="higher")
    amu_gb: float | None = figure("GB", "AMU: mean memory used", better="lower")
    amu_fraction: float | None = figure("", "AMU over the device's capacity", better="lower")
    pcu: float | None = figure("", "PCU: mean busy fraction", better="higher")
    aec_w: float | None = figure("W", "AEC: mean power")
    energy_j: float | None = figure("J", "of the phase's window")
    energy_j_per_token: float | None = figure("J/token", "energy over the prompts' tokens, or the new ones",
        lambda m: m.energy_j_per_token, better="lower")
    energy_scope: str | None = figure("", "what power and energy are of: gpu, npu, cpu-package or node")
    energy_source: str | None = figure("", "counter (a register of the device) or integrated power (polled)")
    device_scope: str | None = figure("", "what AMU and PCU are of: gpu, npu or host")
    memory_kind: str | None = figure("", "how memory was counted: driver, pss or rss")
    peak_memory_device_bytes: int | None = figure("bytes", "the driver's peak for the whole device", better="lower")
    peak_memory_allocated_bytes: int | None = figure("bytes", "the allocator's peak of tensors", better="lower")
    window_s: float | None = figure("s", "length of the measured window", lambda m: m.run.window_s)

    unavailable: dict[str, str] = {}
    """Name of a figure that is None → why."""
    time_percentiles_s: list[float]
    """The times of the steps at 0, 1, …, 100 %."""
    samples: dict[str, int] = {}
    """'memory', 'utilization', 'power' → readings inside the window."""
    energy_doubt: str | None = None
    """Why `energy_j` may be wrong; None: nothing speaks against it."""
    disturbances: list[Disturbance] = []
    """When others used the device."""


class RowFigures(BaseModel):
    """One combination of prompt, batch and new tokens; a figure is None where `unavailable` has the reason."""

    model_config = STRICT

    prompt_tokens: Positive = fact("tokens", "of each prompt")
    batch: Positive = fact("sequences", "computed at once, each with its own prompt")
    max_new_tokens: Positive = fact("tokens", "that each sequence gets, the first one by the prefill")
    ttft_s: float | None = figure("s",
        "mean time to first token: from the prompts on the host to their first tokens there, allocation of the cache "
        "included", lambda m: average(m.first_token_s), better="lower", known_as="vLLM TTFT")
    ttft_s_p50: float | None = figure("s", "median time to first token",
        lambda m: definitions.percentile(m.first_token_s, 50), better="lower")
    ttft_s_p95: float | None = figure("s", "95th percentile of the time to first token",
        lambda m: definitions.percentile(m.first_token_s, 95), better="lower")
    cache_bytes: int | None = figure("bytes",
        "held for a sequence with all its tokens, prompt and new ones: counted in memory",
        lambda m: m.cache_bytes, better="lower")
    cache_bytes_per_token: float | None = figure("bytes/token", "`cache_bytes` over these tokens",
        lambda m: m.cache_bytes / m.tokens, better="lower")
    bytes_needed: float | None = figure("bytes",
        "that a decoding step has to read, its mean: weights once, of experts those touched, and the cache",
        lambda m: m.bytes(m.needed_bytes), better="lower")
    bytes_read: float | None = figure("bytes",
        "`bytes_needed` with the positions behind the last token that the step reads too",
        lambda m: m.bytes(m.read_bytes), better="lower")
    bandwidth_utilization: float | None = figure("",
        "`bytes_needed` over a decoding step's time and the device's peak bandwidth: low where launches take the time",
        lambda m: m.bandwidth(m.needed_bytes), better="higher", known_as="MBU")
    bandwidth_utilization_read: float | None = figure("", "the same of `bytes_read`",
        lambda m: m.bandwidth(m.read_bytes), better="higher")
    experts_touched: float | None = figure("experts",
        "of a layer, that get a token of a decoding step, mean over layers and steps", lambda m: m.experts)
