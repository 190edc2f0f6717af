"""Builds all reports of a folder of runs, from its records alone."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.language import in_users_language
from efficientbench.metrics.analysis.fewer_bits import load_widths
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.generation.generation import load_generations
from efficientbench.metrics.records.plausible import load_placed
from efficientbench.metrics.records.record import RECORD_NAME, RunRecord
from efficientbench.metrics.report.choice import Choice
from efficientbench.metrics.report.columns import COLUMNS, runs_csv
from efficientbench.metrics.report.headline import HEADLINE
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
from efficientbench.metrics.report.suites import MATTERS, make_rows
from efficientbench.metrics.report.table import escape

ALL = Choice()


def build_report(
    folder: Path,
    paper: bool = False,
    price_per_hour: float | None = None,
    choice: Choice = ALL,
    matters: float = MATTERS,
) -> Report:
    """Write report.html, report.md, report.csv and, if TensorBoard is installed, its HParams into the folder.

    Write generation.csv and evaluations.csv too where there are such figures, report_card.md where runs are stages of a
    chat model, and paper.md with `paper`. `price_per_hour` of a device is for the report card; None for no cost.
    `choice` has the runs to show, and the figures of the table and of report.csv; `matters` is the smallest difference
    that matters, a share.

    Raises:
        MetricsError: the folder does not exist, no record below it can be read, no run or column has a name of
            `choice`, or a file cannot be written.
    """
    report, records = _read(folder, price_per_hour, choice, matters)
    texts = {"paper.md": paper_markdown(report.records)} if paper else {}
    texts |= {
        "report.html": page(report),
        "report.md": markdown(report),
        "report.csv": runs_csv(report.records, choice.columns),
    }
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


def _read(folder: Path, price_per_hour: float | None, choice: Choice, matters: float) -> tuple[Report, list[RunRecord]]:
    """Return what lies below a folder, and the records of its single runs, of which repeats are not yet one row."""
    placed, damaged = load_placed(folder)
    generations, unread_generations = load_generations(folder)
    damaged += unread_generations
    if not placed and not generations:
        if damaged:
            unread = f"none of the {len(damaged)} records below it can be read; the first: {damaged[0]}"
            raise MetricsError(f"{folder}: {unread}")
        raise MetricsError(
            f"{folder}: no run's record ({RECORD_NAME}) lies below it: give the folder that runs were written to"
        )
    choice.check([*(record for record, _ in placed), *generations], COLUMNS)
    records = [record for record, _ in placed if choice.holds(record)]
    folders = {place for record, place in placed if choice.holds(record)}

    def shown(run: str | Path) -> bool:
        return choice.holds_folder(folder / run, folders)

    failures, unread_failures = load_failures(folder)
    evaluated, unread_evaluations = load_evaluations(folder)
    contexts, unread_contexts = load_contexts(folder)
    profiled, unread_shares = load_step_shares(folder)
    rows = make_rows(records, matters)
    pipelines = load_pipelines(folder) if any(record.section("init").get("run") for record in records) else []
    pipelines = [stages for stages in pipelines if any(shown(stage.folder) for stage in stages)]
    study, widths = study_of(folder), load_widths(folder)
    damaged += unread_failures + unread_evaluations + unread_contexts + unread_shares + rows.left_out + widths.unread
    report = Report(
        rows=rows,
        # One file may be read for two parts of the report.
        damaged=list(dict.fromkeys(damaged)),
        generations=list(filter(choice.holds, generations)),
        widths=replace(
            widths,
            qualities=[each for each in widths.qualities if shown(each.run)],
            costs=[each for each in widths.costs if any(map(choice.holds, each.made))],
        ),
        failures=[each for each in failures if shown(each.folder)],
        evaluated=[each for each in evaluated if shown(each.run)],
        contexts=[each for each in contexts if shown(each.run)],
        profiled=[each for each in profiled if shown(each.run)],
        pipelines=pipelines,
        figures=[name for name in choice.columns if name in HEADLINE] or tuple(HEADLINE),
        chosen=choice.told(len(records), len(placed)),
        price_per_hour=price_per_hour,
        study="" if study is None else os.path.relpath(study, folder),
    )
    return replace(report, unchecked=without_checksum(records, report.generations, report.evaluated)), records


def markdown(report: Report) -> str:
    """Return the text of report.md: the paragraphs of all sections."""
    parts = [part for section in SECTIONS for part in section.markdown(report)]
    unchecked = [escape(checksum_note(report.unchecked))] if report.unchecked else []
    chosen = [escape(report.chosen)] if report.chosen else []
    return "\n\n".join(["# EfficientBench report", *chosen, *parts, *unchecked]) + "\n"


def print_beside(report: Report, console: Console) -> None:
    """Print what is beside the results: generation, failures, files without a checksum, warnings, written files."""
    print_generation(report.generated, report.records, console)
    print_failures(report.failures, console)
    if report.chosen:
        print(in_users_language(report.chosen))
    if report.unchecked:
        print(in_users_language(checksum_note(report.unchecked)))
    for line in report.warnings:
        print(in_users_language(f"warning: {line}"), file=sys.stderr)
    if report.study:
        print(in_users_language(f"study of these runs: {report.study}"))
    for path in report.written:
        print(path)
