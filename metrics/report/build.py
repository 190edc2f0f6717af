"""Builds all reports of a folder of runs, from its records alone."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.fewer_bits import load_widths
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.generation.generation import load_generations
from efficientbench.metrics.records.plausible import load_records
from efficientbench.metrics.records.record import RECORD_NAME, RunRecord
from efficientbench.metrics.report.columns import runs_csv
from efficientbench.metrics.report.hparams import HPARAMS_FOLDER, write_hparams
from efficientbench.metrics.report.html.page import page
from efficientbench.metrics.report.paper.paper import paper_markdown
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.section import SECTIONS
from efficientbench.metrics.report.sections.card import CARD_NAME, card_markdown, load_pipelines
from efficientbench.metrics.report.sections.cautions import checksum_note, without_checksum
from efficientbench.metrics.report.sections.contexts import load_contexts
from efficientbench.metrics.report.sections.evaluations import CSV_NAME as EVALUATIONS_CSV
from efficientbench.metrics.report.sections.evaluations import evaluations_csv, load_evaluations
from efficientbench.metrics.report.sections.failures import load_failures, print_failures
from efficientbench.metrics.report.sections.generation import CSV_NAME, beside, generation_csv, print_generation
from efficientbench.metrics.report.sections.rank_table import load_step_shares
from efficientbench.metrics.report.study_link import study_of
from efficientbench.metrics.report.suites import make_rows
from efficientbench.metrics.report.table import escape


def build_report(folder: Path, paper: bool = False, price_per_hour: float | None = None) -> Report:
    """Write report.html, report.md, report.csv and, if TensorBoard is installed, its HParams into the folder.

    Write generation.csv and evaluations.csv too where there are such figures, report_card.md where runs are stages of a
    chat model, and paper.md with `paper`. `price_per_hour` of a device is for the report card; None for no cost.

    Raises:
        MetricsError: the folder does not exist, no record below it can be read, or a file cannot be written.
    """
    report, records = _read(folder, price_per_hour)
    texts = {"paper.md": paper_markdown(report.records)} if paper else {}
    texts |= {"report.html": page(report), "report.md": markdown(report), "report.csv": runs_csv(report.records)}
    if report.generations:
        texts[CSV_NAME] = generation_csv(report.generated, report.records)
    if report.evaluations:
        texts[EVALUATIONS_CSV] = evaluations_csv(report.evaluated)
    if report.card:
        texts[CARD_NAME] = card_markdown(report.card, report.changes, report.pipelines)
    for name, text in texts.items():
        write_whole(folder / name, text)
    names, warnings = list(texts), list(report.damaged)
    if find_spec("tensorboard") is not None:
        write_hparams(records, folder / HPARAMS_FOLDER, beside(report.generations, records))
        names.insert(names.index("report.csv"), HPARAMS_FOLDER)
    else:
        warnings.append(f"{HPARAMS_FOLDER}/ needs TensorBoard: pip install 'efficientbench[metrics]'")
    return replace(report, warnings=warnings, written=[folder / name for name in names])


def _read(folder: Path, price_per_hour: float | None) -> tuple[Report, list[RunRecord]]:
    """Return what lies below a folder, and the records of its single runs, of which repeats are not yet one row."""
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
    failures, unread_failures = load_failures(folder)
    evaluated, unread_evaluations = load_evaluations(folder)
    contexts, unread_contexts = load_contexts(folder)
    profiled, unread_shares = load_step_shares(folder)
    rows = make_rows(records)
    study = study_of(folder)
    widths = load_widths(folder)
    damaged += unread_failures + unread_evaluations + unread_contexts + unread_shares + rows.left_out + widths.unread
    report = Report(
        rows=rows,
        # One file may be read for two parts of the report.
        damaged=list(dict.fromkeys(damaged)),
        generations=generations,
        widths=widths,
        failures=failures,
        evaluated=evaluated,
        contexts=contexts,
        profiled=profiled,
        pipelines=load_pipelines(folder) if any(record.section("init").get("run") for record in records) else (),
        price_per_hour=price_per_hour,
        study="" if study is None else os.path.relpath(study, folder),
        unchecked=without_checksum(records, generations, evaluated),
    )
    return report, records


def markdown(report: Report) -> str:
    """Return the text of report.md: the paragraphs of all sections."""
    parts = [part for section in SECTIONS for part in section.markdown(report)]
    unchecked = [escape(checksum_note(report.unchecked))] if report.unchecked else []
    return "\n\n".join(["# EfficientBench report", *parts, *unchecked]) + "\n"


def print_beside(report: Report, console: Console) -> None:
    """Print what is beside the results: generation, failures, files without a checksum, warnings, written files."""
    print_generation(report.generated, report.records, console)
    print_failures(report.failures, console)
    if report.unchecked:
        print(checksum_note(report.unchecked))
    for line in report.warnings:
        print(f"warning: {line}", file=sys.stderr)
    if report.study:
        print(f"study of these runs: {report.study}")
    for path in report.written:
        print(path)
