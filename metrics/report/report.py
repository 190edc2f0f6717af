"""What lies below a reported folder: its runs, and all that the sections of a report show beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from efficientbench.metrics.analysis.fewer_bits import Widths
from efficientbench.metrics.records.generation.generation import GenerationRecord
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import HEADLINE, Absence, absences
from efficientbench.metrics.report.plots.svg import Run, numbered
from efficientbench.metrics.report.sections.card import Pipeline, card_table
from efficientbench.metrics.report.sections.contexts import Context
from efficientbench.metrics.report.sections.evaluations import Evaluated, evaluations_table
from efficientbench.metrics.report.sections.failures import FailedRun
from efficientbench.metrics.report.sections.generation import Generated, beside
from efficientbench.metrics.report.sections.rank_table import Profiled
from efficientbench.metrics.report.sections.stage_changes import stage_changes
from efficientbench.metrics.report.suites import Rows
from efficientbench.metrics.report.table import Table


@dataclass(frozen=True)
class Report:
    """The records that were read, and the files that were written."""

    rows: Rows
    """The report's rows: one for each run, and one for each group of repeats."""
    damaged: Sequence[str] = ()
    """A message for each file that cannot be read or be true, and each record for which another one stands."""
    generations: Sequence[GenerationRecord] = ()
    widths: Widths = Widths()
    failures: Sequence[FailedRun] = ()
    evaluated: Sequence[Evaluated] = ()
    contexts: Sequence[Context] = ()
    profiled: Sequence[Profiled] = ()
    pipelines: Sequence[Pipeline] = ()
    figures: Sequence[str] = tuple(HEADLINE)
    """Columns of the table of results, of HEADLINE."""
    chosen: str = ""
    """A sentence where not all runs were asked for."""
    price_per_hour: float | None = None
    """The price of one device hour for the report card; None for no column of costs."""
    study: str = ""
    """Path, from the reported folder, of the page of the study that these runs belong to; empty where there is none."""
    unchecked: Sequence[str] = ()
    """Names of the files without a checksum, from `without_checksum`."""
    warnings: Sequence[str] = ()
    """The messages of `damaged`, and one for each part that the report lacks."""
    written: Sequence[Path] = ()
    contents: dict[str, Any] = field(default_factory=dict, init=False, compare=False)
    """Anchor of a section → what it shows, made once for the page and report.md."""

    @property
    def records(self) -> list[RunRecord]:
        """Return one record for each row."""
        return self.rows.records

    @cached_property
    def runs(self) -> list[Run]:
        """Return the rows with their looks in plots."""
        return numbered(self.records)

    @cached_property
    def generated(self) -> list[Generated]:
        """Return each record of generation beside the training of the same run."""
        return beside(self.generations, self.records)

    @cached_property
    def absences(self) -> list[Absence]:
        """Return the reasons for figures that are n/a."""
        return absences(self.records, self.figures)

    @cached_property
    def evaluations(self) -> Table:
        """Return the table of evaluations."""
        return evaluations_table(self.evaluated)

    @cached_property
    def card(self) -> Table:
        """Return the report card, without rows where no runs are stages of one model."""
        return card_table(self.pipelines, self.evaluations, self.price_per_hour)

    @cached_property
    def changes(self) -> Table:
        """Return what each stage changed, without rows where no two stages evaluated the same items."""
        return stage_changes(self.pipelines)
