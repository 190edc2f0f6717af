"""Holds what the figures of generation are computed from, and computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.formulas import definitions
from efficientbench.metrics.formulas.student import mean_confidence_interval
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.records.facts import finite, of_run
from efficientbench.metrics.records.figure import average
from efficientbench.metrics.records.generation.generation_figures import rows_of


@dataclass(frozen=True)
class PhaseMeasured:
    """One phase as the formulas of its figures read it."""

    run: RunMeasurement
    """The window of the phase alone."""
    times_s: Sequence[Sequence[float]]
    """Times of the steps of each repeat."""
    tokens: int
    """Tokens of a step: those of all prompts, or a new one of each row."""

    @property
    def steps_s(self) -> list[float]:
        """Return the times of all steps."""
        return [time_s for repeat in self.times_s for time_s in repeat]

    @property
    def interval(self) -> tuple[float, float]:
        """Return the mean's 95 % interval by Student's t over the repeats' means.

        Steps of one repeat are correlated, and later steps read more: only repeats are independent.
        """
        found = mean_confidence_interval([average(repeat) for repeat in self.times_s])
        if found is None:
            raise MetricsError("an interval needs two repeats")
        return found

    @property
    def energy_j_per_token(self) -> float:
        """Return the window's energy over the tokens of its steps."""
        return definitions.energy_per_token(of_run(self.run, "energy_j"), self.tokens * len(self.run.step_times_s))


@dataclass(frozen=True)
class RowMeasured:
    """One combination of prompt, batch and new tokens as the formulas of its figures read it."""

    run: RunMeasurement
    """The window of decoding."""
    first_token_s: Sequence[float]
    """Time to first token of each repeat."""
    cache_bytes: int
    """Cache in memory for one sequence with all its tokens."""
    tokens: int
    """Number of tokens of such a sequence, prompt and new ones."""
    step_s: float
    """Mean time of a decoding step."""
    needed_bytes: float | None
    """Bytes that a decoding step has to read; None, as the next: `unknown` says why."""
    read_bytes: float | None
    """Bytes that a decoding step reads: the needed ones, and the positions after the last token that it reads too."""
    unknown: str
    peak_bytes_s: float | None
    """The device's memory bandwidth; None: the source says why."""
    peak_source: str
    experts_touched: float | None
    """Experts of a layer that a decoding step uses, mean over layers and steps; None: the model has no experts."""

    def bytes(self, found: float | None) -> float:
        """Return `found`, a number of bytes; raise MetricsError with the reason if it is None."""
        if found is None:
            raise MetricsError(self.unknown)
        return found

    def bandwidth(self, found: float | None) -> float:
        """Return `found` bytes over a decoding step's time and the device's peak bandwidth."""
        moved = self.bytes(found)
        if self.peak_bytes_s is None:
            raise MetricsError(self.peak_source)
        return moved / self.step_s / self.peak_bytes_s

    @property
    def experts(self) -> float:
        if self.experts_touched is None:
            raise MetricsError("the model has no experts")
        return self.experts_touched


def figures_of(table: type[BaseModel], measured: PhaseMeasured | RowMeasured) -> dict[str, Any]:
    """Return the figures of a table by their formulas, and `unavailable` with the reasons of those that are None."""
    values: dict[str, Any] = {}
    unavailable: dict[str, str] = {}
    for name, row in rows_of(table).items():
        if table.model_fields[name].is_required():
            continue
        try:
            values[name] = finite(of_run(measured.run, name) if row.formula is None else row.formula(measured))
        except MetricsError as error:
            values[name], unavailable[name] = None, str(error)
    return values | {"unavailable": unavailable}
