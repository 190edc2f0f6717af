"""Builds all reports of a folder of runs, from its records alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.generation.generation import GenerationRecord, load_generations
from efficientbench.metrics.records.record import RECORD_NAME, RunRecord, load_records
from efficientbench.metrics.report.answers import RULE, answers_table
from efficientbench.metrics.report.columns import write_csv
from efficientbench.metrics.report.comparison import noise_floors
from efficientbench.metrics.report.headline import absences, notes, results_table
from efficientbench.metrics.report.hparams import HPARAMS_FOLDER, write_hparams
from efficientbench.metrics.report.html.page import page
from efficientbench.metrics.report.paper.paper import NO_ENERGY, paper_markdown, paper_tables
from efficientbench.metrics.report.sections.card import CARD_NAME, card_markdown, card_table, load_pipelines
from efficientbench.metrics.report.sections.checksums import checksum_note, without_checksum
from efficientbench.metrics.report.sections.contexts import load_contexts
from efficientbench.metrics.report.sections.environments import environments
from efficientbench.metrics.report.sections.evaluations import CSV_NAME as EVALUATIONS_CSV
from efficientbench.metrics.report.sections.evaluations import (
    evaluations_table,
    load_evaluations,
    write_evaluations_csv,
)
from efficientbench.metrics.report.sections.failures import FailedRun, failures_table, load_failures
from efficientbench.metrics.report.sections.generation import CSV_NAME, beside, generation_table, write_generation_csv
from efficientbench.metrics.report.sections.loss_costs import cost_tables
from efficientbench.metrics.report.sections.meters import meters_table
from efficientbench.metrics.report.sections.optimizers import optimizers_table
from efficientbench.metrics.report.sections.rank_table import load_step_shares, rank_table, wall_time_table
from efficientbench.metrics.report.sections.rollouts import rollouts_table
from efficientbench.metrics.report.suites import Rows, make_rows
from efficientbench.metrics.report.table import Table, escape, markdown_table


@dataclass(frozen=True)
class Report:
    """The records that were read, and the files that were written."""

    rows: Rows
    """The report's rows: one for each run, and one for each group of repeats."""
    generations: list[GenerationRecord]
    failures: list[FailedRun]
    unchecked: list[str]
    """Names of the files without a checksum, from `without_checksum`."""
    warnings: list[str]
    """A message for each file that cannot be read, and for each part that the report lacks."""
    written: list[Path]

    @property
    def records(self) -> list[RunRecord]:
        """Return one record for each row."""
        return self.rows.records


def build_report(folder: Path, paper: bool = False, price_per_hour: float | None = None) -> Report:
    """Write report.html, report.md, report.csv and, if TensorBoard is installed, its HParams into the folder.

    Write generation.csv and evaluations.csv too where there are such figures, report_card.md where runs are stages of a
    chat model, and paper.md with `paper`. `price_per_hour` of a device is for the report card; None for no cost.

    Raises:
        MetricsError: the folder does not exist, no record below it can be read, or a file cannot be written.
    """
    records, damaged = load_records(folder)
    generations, unread_generations = load_generations(folder)
    damaged += unread_generations
    if not records and not generations:
        if damaged:
            unread = f"none of the {len(damaged)} records below it can be read; the first: {damaged[0]}"
            raise MetricsError(f"{folder}: {unread}")
        raise MetricsError(
            f"{folder}: no run's record ({RECORD_NAME}) lies below it: give the folder that runs were written to"
        )
    rows = make_rows(records)
    failures, unread_failures = load_failures(folder)
    evaluated, unread_evaluations = load_evaluations(folder)
    contexts, unread_contexts = load_contexts(folder)
    profiled, unread_shares = load_step_shares(folder)
    # One file may be read for two parts of the report.
    damaged = list(dict.fromkeys(damaged + unread_failures + unread_evaluations + unread_contexts + unread_shares))
    evaluations, unchecked = evaluations_table(evaluated), without_checksum(records, generations, evaluated)
    pipelines = load_pipelines(folder) if any(record.section("init").get("run") for record in records) else []
    card = card_table(pipelines, evaluations, price_per_hour) if pipelines else None
    html = page(rows, damaged, failures, evaluations, generations, contexts, profiled, card, unchecked)
    write_whole(folder / "report.html", html)
    write_whole(folder / "report.md", markdown(rows, damaged, failures, evaluations, generations, unchecked))
    write_csv(rows.records, folder / "report.csv")
    names, warnings = ["report.html", "report.md", "report.csv"], list(damaged)
    if generations:
        write_generation_csv(beside(generations, rows.records), rows.records, folder / CSV_NAME)
        names.append(CSV_NAME)
    if evaluations.rows:
        write_evaluations_csv(evaluated, folder / EVALUATIONS_CSV)
        names.append(EVALUATIONS_CSV)
    if find_spec("tensorboard") is not None:
        write_hparams(records, folder / HPARAMS_FOLDER, beside(generations, records))
        names.insert(2, HPARAMS_FOLDER)
    else:
        warnings.append(f"{HPARAMS_FOLDER}/ needs TensorBoard: pip install 'efficientbench[metrics]'")
    if card is not None:
        write_whole(folder / CARD_NAME, card_markdown(card, pipelines))
        names.append(CARD_NAME)
    if paper:
        write_whole(folder / "paper.md", paper_markdown(rows.records))
        names.insert(0, "paper.md")
    return Report(rows, generations, failures, unchecked, warnings, [folder / name for name in names])


def markdown(
    rows: Rows,
    damaged: Sequence[str],
    failures: Sequence[FailedRun] = (),
    evaluations: Table | None = None,
    generations: Sequence[GenerationRecord] = (),
    unchecked: Sequence[str] = (),
) -> str:
    """Return the text of report.md: the answers, the table of results, the other sections and all notes."""
    records, parts = rows.records, ["# EfficientBench report"]
    if rows.suites:
        answered = answers_table(rows.suites)
        parts += [f"## {answered.title}", markdown_table(answered), RULE, *map(escape, answered.notes)]
    parts += ["## Results", markdown_table(results_table(records))] if records else []
    parts += [escape(note) for note in (*notes(records), *map(str, noise_floors(records)))]
    if generations:
        table = generation_table(beside(generations, records), records)
        listed = "\n".join(f"- {escape(note)}" for note in table.notes)
        parts += [f"## {table.title}", markdown_table(table), listed]
    if failures:
        table = failures_table(failures)
        parts += [f"## {table.title}", markdown_table(table)]
    if evaluations is not None and evaluations.rows:
        parts += [f"## {evaluations.title}", markdown_table(evaluations), *map(escape, evaluations.notes)]
    found = (optimizers_table, rollouts_table, wall_time_table, rank_table, meters_table)
    for each in filter(None, (table_of(records) for table_of in found)):
        parts += [f"## {each.title}", markdown_table(each), *map(escape, each.notes)]
    for table in cost_tables(records):
        parts += [f"## Cost, {escape(table.title)}", markdown_table(table), *map(escape, table.notes)]
    missing = [f"- {escape(str(absence))}" for absence in absences(records)]
    if missing:
        parts += ["## What is n/a, and why", "\n".join(missing)]
    tables = paper_tables(records)
    energy = [sentence for table in tables for sentence in table.notes if sentence != NO_ENERGY]
    if energy:
        parts += ["## Energy: J/token against AEC", "\n".join(f"- {escape(line)}" for line in dict.fromkeys(energy))]
    parts.append("## Where the runs happened")
    for runs, facts in environments(records):
        listed = "\n".join(f"- {escape(key)}: {escape(value)}" for key, value in facts.items())
        parts += [f"**{escape(', '.join(runs))}**", listed]
    if damaged:
        parts += ["## Files that could not be read", "\n".join(f"- {escape(line)}" for line in damaged)]
    if unchecked:
        parts.append(escape(checksum_note(unchecked)))
    return "\n\n".join(parts) + "\n"
