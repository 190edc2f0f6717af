"""Holds `GenerationRecord`, the cost of generating on one device, which lies beside the run's record.

A row is a combination of prompt, batch and new tokens; its prefill and its decoding are measured apart.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, model_validator

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.records.figure import Figure, Positive, fact, rows_of
from efficientbench.metrics.records.figures import Subject
from efficientbench.metrics.records.generation.generation_figures import Phase, RowFigures
from efficientbench.metrics.records.stored import iso_time

GENERATION_NAME = "generation.json"
GENERATION_SCHEMA: Literal[1] = 1
"""Rises when a field changes its meaning or is removed; a new figure does not raise it."""
GENERATION_FORMULAS = "efficientbench-generation/1"
"""The edition of the figures' meanings; rows of different editions are not compared."""
ENGINE = "efficientbench: one static batch, all prompts at once"
"""The engine that was measured: a server with continuous batching, as vLLM or SGLang, has other figures."""


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
load_generations = GenerationRecord.load


def generation_of(run: Path) -> GenerationRecord | None:
    """Return the record of generation in a run's folder; None if there is none, or it cannot be read."""
    if (run / GENERATION_NAME).is_file():
        with contextlib.suppress(MetricsError):
            return read_generation(run / GENERATION_NAME)
    return None
