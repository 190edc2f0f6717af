"""Holds what the figures of generation are computed from, and computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel

from efficientbench.metrics.formulas import definitions
from efficientbench.metrics.formulas.student import mean_confidence_interval
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.records.facts import of_run
from efficientbench.metrics.records.figure import average, computed, known, rows_of


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
        means = [average(repeat) for repeat in self.times_s]
        return known(mean_confidence_interval(means), "an interval needs two repeats")

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
        return known(found, self.unknown)

    def bandwidth(self, found: float | None) -> float:
        """Return `found` bytes over a decoding step's time and the device's peak bandwidth."""
        return self.bytes(found) / self.step_s / known(self.peak_bytes_s, self.peak_source)

    @property
    def experts(self) -> float:
        return known(self.experts_touched, "the model has no experts")


def figures_of(table: type[BaseModel], measured: PhaseMeasured | RowMeasured) -> dict[str, Any]:
    """Return the figures of a table by their formulas, and `unavailable` with the reasons of those that are None."""
    rows = {name: row for name, row in rows_of(table).items() if not table.model_fields[name].is_required()}
    values, unavailable = computed(rows, measured, partial(of_run, measured.run))
    return values | {"unavailable": unavailable}
