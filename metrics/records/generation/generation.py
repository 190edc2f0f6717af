"""Holds `GenerationRecord`, the cost of generating on one device, which lies beside the run's record.

A row is a combination of prompt, batch and new tokens; its prefill and its decoding are measured apart. Each field of
`Phase` and `RowFigures` is a figure, from which every record, report and page follows. A formula's `m` is
`PhaseMeasured` or `RowMeasured` of generation_facts.py. Time to first token and time per output token are those
of one static batch in this project's own engine, where all prompts arrive at once, and not those of a server that
schedules requests.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, NonNegativeFloat, model_validator

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas import definitions
from efficientbench.metrics.formulas.device_use import Disturbance
from efficientbench.metrics.records.figure import Figure, Positive, average, fact, figure, rows_of
from efficientbench.metrics.records.figures import Subject
from efficientbench.metrics.records.other_layers import named_by_layers
from efficientbench.metrics.records.stored import STRICT, iso_time

GENERATION_NAME = "generation.json"
GENERATION_SCHEMA: Literal[1] = 1
"""Rises when a field changes its meaning or is removed; a new figure does not raise it."""
GENERATION_FORMULAS = "efficientbench-generation/1"
"""The edition of the figures' meanings; rows of different editions are not compared."""
ENGINE = "efficientbench: one static batch, all prompts at once"
"""The engine that was measured: a server with continuous batching, as vLLM or SGLang, has other figures."""

# Unformatted as in records/figures.py.
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

# fmt: on


class GenerationRow(RowFigures):
    """What was measured of one combination, or why nothing was."""

    failure: str | None = None
    """Why the combination could not be measured, such as a lack of memory; None: it was."""
    unavailable: dict[str, str] = {}
    """Name of a figure of the row that is None → why."""
    prefill: Phase | None = None
    """None for a failure, as `decode`."""
    decode: Phase | None = None

    @model_validator(mode="after")
    def _is_measured_or_failed(self) -> GenerationRow:
        """Refuse a row that is neither measured nor failed, and a figure that is None without a reason."""
        measured = (self.prefill is not None, self.decode is not None)
        if measured != (self.failure is None,) * 2:
            raise ValueError("a row has either a failure, or a prefill and a decode")
        if self.prefill is not None and self.decode is not None:
            for part in (self, self.prefill, self.decode):
                figures = rows_of(RowFigures if part is self else Phase)
                missing = [name for name in figures if getattr(part, name) is None and name not in part.unavailable]
                if missing:
                    raise ValueError(f"absent without a reason in 'unavailable': {', '.join(missing)}")
        return self

    @property
    def phases(self) -> dict[str, Phase]:
        """Return the measured phases by name; empty for a failure."""
        named = (("prefill", self.prefill), ("decode", self.decode))
        return {name: phase for name, phase in named if phase is not None}

    def value(self, name: str) -> Any:
        """Return a figure by its name in `GENERATION_FIGURES`; None where it was not measured."""
        for prefix, phase in (("prefill_", self.prefill), ("decode_", self.decode)):
            if name.startswith(prefix):
                return None if phase is None else getattr(phase, name.removeprefix(prefix))
        return getattr(self, name)

    def why(self, name: str) -> str | None:
        """Return why a figure of `GENERATION_FIGURES` is None."""
        if self.failure is not None:
            return self.failure
        for prefix, phase in (("prefill_", self.prefill), ("decode_", self.decode)):
            if phase is not None and name.startswith(prefix):
                return phase.unavailable.get(name.removeprefix(prefix))
        return self.unavailable.get(name)


class GenerationRecord(Subject):
    """The rows of one model on one device."""

    file_name = GENERATION_NAME
    kind_of_file = "a record of generation"

    # fmt: off
    devices: Positive = fact("", "D: accelerators, or hosts where the host is the device")
    device_name: str = fact("", "as the driver gives it")
    dtype: str = fact("", "of weights, cache and products")
    weights: str = fact("", "'random', or the training step whose checkpoint was loaded")
    quantization: str = fact("", "of the linear layers' weights: none, or their width and how many share a scale",
        default="none")
    weight_bytes: Positive | None = fact("bytes", "of all weights in memory after loading, counted", default=None)
    disk_bytes: Positive | None = fact("bytes", "of all weights on disk: packed, with scales and offsets, by formula",
        default=None)
    engine: str = fact("", "the program and its kind of batch: the figures are of no other", default=ENGINE)
    decode_path: str = fact("", "how a decoding step is launched, and the kernel that attends to the cache")
    steps: Literal["eager", "compiled"] = fact("", "whether torch.compile made a graph of a decoding step",
        default="eager")
    status: Literal["completed", "stopped"] = fact("", "completed, or stopped (on request) before the last row")
    started_at: Annotated[str, AfterValidator(iso_time)] = fact("UTC", "when it began, ISO 8601")
    duration_s: NonNegativeFloat = fact("s", "from start to end, set-up included")
    formula_id: str = fact("", "the edition of the formulas; rows of different ids are not compared",
        default=GENERATION_FORMULAS)
    # fmt: on

    kind: Literal["generation"] = "generation"
    schema_version: Literal[1] = GENERATION_SCHEMA
    peak_bytes_s: Annotated[float, Field(gt=0)] | None = None
    """The device's memory bandwidth, of which `bandwidth_utilization` is a part; None: not known."""
    peak_bytes_source: str = ""
    """Where the bandwidth is from, or why it is not known."""
    kernels: dict[str, str] = {}
    """Part of the model → the kernel that computes prompts."""
    left_out: dict[str, int] = {}
    """Name of a matrix that is not quantized, without its layer's number → its bytes in all layers."""
    rows: list[GenerationRow] = []
    config: dict[str, Any] = {}
    """The resolved configuration."""
    environment: dict[str, Any] = {}
    """The facts that `collect_environment` returned, and the sensors."""
    sha256: str | None = None
    """SHA-256 (hex) of all else in the file, as that of a run's record."""


GENERATION_FIGURES: dict[str, Figure] = {
    **rows_of(GenerationRecord),
    **rows_of(RowFigures),
    **{f"prefill_{name}": row for name, row in rows_of(Phase).items()},
    **{f"decode_{name}": row for name, row in rows_of(Phase).items()},
}
"""Name of a column → its row of the tables: the record's, the row's, then those of both phases."""


read_generation, write_generation = GenerationRecord.read, GenerationRecord.write


def load_generations(folder: Path) -> tuple[list[GenerationRecord], list[str]]:
    """Read all records below a folder as `Stored.load` does, each named as the run that trained the model."""
    found, damaged = GenerationRecord.load(folder)
    return [named_by_layers(record, record.config) for record in found], damaged


def generation_of(run: Path) -> GenerationRecord | None:
    """Return the record of generation in a run's folder; None if there is none, or it cannot be read."""
    if (run / GENERATION_NAME).is_file():
        with contextlib.suppress(MetricsError):
            return read_generation(run / GENERATION_NAME)
    return None
