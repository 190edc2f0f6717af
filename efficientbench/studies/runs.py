"""What a study has: its runs as they are on disk, the rates that it searched, and what the variants cost at the target.

The verdict and its page are made from this alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from efficientbench.metrics.records.generation.generation import GenerationRecord
from efficientbench.metrics.records.record import RunRecord
from efficientbench.studies.ladder import Cell, Ladder, Result
from efficientbench.studies.suite import StudySection

RunState = Literal["complete", "missing", "failed", "speed only"]


@dataclass(frozen=True)
class StudyRun:
    """One run of the ladder: a variant in a cell with a seed."""

    variant: str
    cell: Cell
    seed: int
    folder: Path
    state: RunState
    learning_rate: float | None
    """At the peak of the schedule; None where it is not known yet."""
    record: RunRecord | None
    """None unless the run is complete or speed only."""
    reason: str | None
    """Why its loss is absent; None for a complete run."""
    generation: GenerationRecord | None = None
    """The cost of generation with the trained model; None where it was not measured."""

    @property
    def loss(self) -> float | None:
        """The final validation loss in nats a token; None unless the run is complete."""
        return self.record.validation_loss if self.state == "complete" and self.record else None


@dataclass(frozen=True)
class MatchLeft:
    """What the matching of one variant at one size came to."""

    width: int
    """The feed-forward width that was found; of a mixture, its experts'."""
    before: int
    """The width that the matrix has."""
    left: float
    """The variant's figure over the baseline's, minus 1."""


@dataclass(frozen=True)
class TargetCost:
    """What the training of one variant costs at the target, and a token of its cache; None: not known."""

    training_flops: float | None
    device_seconds: float | None
    time_source: str
    """Where the seconds are from, or why there are none."""
    time_measured: bool
    """Whether the seconds follow from a measured rate; else from the plan."""
    joules: float | None
    energy_source: str
    """Where the joules are from, or why there are none."""
    cache_bytes_per_token: int | None
    rates: tuple[float, ...] = ()
    """FLOP/s of a device in each run that the seconds are measured from."""
    energies: tuple[float, ...] = ()
    """J per FLOP in each run that the joules are measured from."""


@dataclass(frozen=True)
class Study:
    """Everything that the verdict needs."""

    name: str
    """Of the file, or the variants."""
    folder: Path
    """The folder of the study's runs, in which the page is written too."""
    section: StudySection
    target: Cell
    """N and D of the baseline at the target."""
    runs: tuple[StudyRun, ...]
    """Every run of the plan: by cell, seed and variant."""
    searches: Mapping[tuple[str, str], Mapping[float, float]]
    """(variant, size) → rate → loss of the search, infinite where the run diverged; empty for fixed rates."""
    unsearched: Mapping[str, str]
    """Variant → why it has no learning rate, and so no runs."""
    slope: float | None
    """gamma of ln(rate) over ln N; None for fixed rates or before the searches are done."""
    matching: Mapping[tuple[str, str], MatchLeft]
    """(variant, size) → what matching came to, the target's size included; empty without a match."""
    costs: Mapping[str, TargetCost]
    """Variant → its costs at the target."""
    device_name: str | None
    """The devices of the ladder's records; None without a record."""
    price_per_hour: float | None = None
    """Of one device, in the user's currency."""
    served_tokens: float | None = None
    """Tokens that the trained model will serve; None: not asked."""
    other_values: Mapping[str, object] = field(default_factory=dict)
    """Key → the value with which complete runs were trained, where the plan has another."""

    @property
    def complete(self) -> int:
        """How many runs of the plan are complete."""
        return sum(run.state == "complete" for run in self.runs)

    @property
    def ladder(self) -> Ladder:
        """The losses of the complete runs, the baseline first; a cell stays where a run of it is missing."""
        found = [
            Result(run.variant, run.cell, run.seed, float("nan") if run.loss is None else run.loss) for run in self.runs
        ]
        return Ladder.of(found, self.section.ordered, self.section.trunks)
