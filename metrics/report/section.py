"""The sections of a report, one list for the page and report.md: anchor, title, and what each shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from efficientbench.metrics.records.figure import Figure as Column
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.answers import RULE, TITLES, answers, answers_table, open_questions
from efficientbench.metrics.report.columns import COLUMNS
from efficientbench.metrics.report.comparison import noise_floors
from efficientbench.metrics.report.first_lines import first_lines
from efficientbench.metrics.report.headline import HEADLINE, cell, relative_interval, results_table, signs
from efficientbench.metrics.report.model_sizes import sizes_table, unmatched
from efficientbench.metrics.report.paper.paper import NO_ENERGY, paper_tables
from efficientbench.metrics.report.plots.axis_plots import axis_curves, axis_maps
from efficientbench.metrics.report.plots.bar_plots import metric_figures, step_time_figures
from efficientbench.metrics.report.plots.context_plots import context_figures
from efficientbench.metrics.report.plots.difference_plots import difference_figures
from efficientbench.metrics.report.plots.generation_plots import generation_figures, generation_legend
from efficientbench.metrics.report.plots.loss_plots import cost_figures, curve_figures
from efficientbench.metrics.report.plots.run_plots import expert_figures, over_time
from efficientbench.metrics.report.plots.scaling_plots import scaling_figures
from efficientbench.metrics.report.plots.share_plots import share_figures
from efficientbench.metrics.report.plots.svg import MOST_RUNS, Figure, Run
from efficientbench.metrics.report.plots.told import TITLE, told_tables
from efficientbench.metrics.report.report import Report
from efficientbench.metrics.report.sections.card import STAGE_CHANGES
from efficientbench.metrics.report.sections.cautions import cautions
from efficientbench.metrics.report.sections.crossings import TITLE as CROSSINGS
from efficientbench.metrics.report.sections.crossings import crossing_tables
from efficientbench.metrics.report.sections.environments import environments, listed_environments, settings_table
from efficientbench.metrics.report.sections.failures import TITLE as FAILURES
from efficientbench.metrics.report.sections.failures import failures_table
from efficientbench.metrics.report.sections.fewer_bits import TITLE as FEWER_BITS
from efficientbench.metrics.report.sections.fewer_bits import bits_tables
from efficientbench.metrics.report.sections.generation import COLUMNS as GENERATION_COLUMNS
from efficientbench.metrics.report.sections.generation import CSV_NAME, generation_table
from efficientbench.metrics.report.sections.generation import TITLE as GENERATION
from efficientbench.metrics.report.sections.loss_costs import cost_tables
from efficientbench.metrics.report.sections.meters import TITLE as METERS
from efficientbench.metrics.report.sections.meters import meters_table
from efficientbench.metrics.report.sections.optimizers import optimizers_table
from efficientbench.metrics.report.sections.rank_table import rank_table, wall_time_table
from efficientbench.metrics.report.sections.rollouts import rollouts_table
from efficientbench.metrics.report.table import ABSENT, Table, bullets, escape, markdown_table

Plotted = TypeVar("Plotted")


@dataclass(frozen=True)
class Section:
    """One part of a report, which appears where it has something to show."""

    anchor: str
    title: str
    table: Callable[[Report], Table] | None = None
    """Returns its table with notes; None: it has no single one."""
    drawn: Callable[[Report], Any] | None = None
    """Returns what the macro of this anchor in sections.html draws; None: it draws the table."""
    text: Callable[[Report], list[str]] | None = None
    """Returns its paragraphs in report.md before its plots' figures; None: these are the table and its notes."""

    def content(self, report: Report) -> Any:
        """Return what the page shows; empty where the section does not apply."""
        if self.anchor not in report.contents:
            show = self.drawn or self.table
            report.contents[self.anchor] = show(report) if show else None
        return report.contents[self.anchor]

    def markdown(self, report: Report) -> list[str]:
        """Return the section's paragraphs in report.md, heading first, and its plots' figures; empty without any."""
        parts = self.text(report) if self.text else self._tabled(report)
        plotted = [f"### {TITLE}\n\n{markdown_table(table)}" for table in told_tables(self.content(report))]
        return [*(parts or [f"## {self.title}"]), *plotted] if plotted else parts

    def _tabled(self, report: Report) -> list[str]:
        table = self.table(report) if self.table else None
        return [f"## {self.title}", markdown_table(table), *map(escape, table.notes)] if table else []


def _answers(report: Report) -> dict[str, Any]:
    suites = report.rows.suites
    return (
        {
            "suites": [
                (suite, unmatched(suite), list(zip(TITLES.values(), answers(suite), strict=True))) for suite in suites
            ],
            "questions": TITLES.values(),
            "rule": RULE,
            "lines": first_lines(report.rows, report.price_per_hour),
            "open": open_questions(suites),
            "differences": difference_figures(suites),
        }
        if suites
        else {}
    )


def _answers_text(report: Report) -> list[str]:
    table, lines = answers_table(report.rows.suites), first_lines(report.rows, report.price_per_hour)
    first = [bullets(lines)] if lines else []
    return [f"## {ANSWERS}", *first, markdown_table(table), *map(escape, table.notes)] if table else []


def _results(report: Report) -> dict[str, Any]:
    columns = [(HEADLINE[figure].title, _meaning(figure)) for figure in report.figures]
    rows = [(run, [_cell(figure, run, report) for figure in report.figures]) for run in report.runs]
    return {"columns": columns, "rows": rows, "signs": signs(report.records)} if rows else {}


def _meaning(figure: str) -> str:
    row = COLUMNS[figure]
    better = f"; {row.better} is better" if row.better else ""
    return f"{figure}: {row.description}" + (f" ({row.unit})" if row.unit else "") + better


def _cell(figure: str, run: Run, report: Report) -> dict[str, Any]:
    """Return a figure's text and its column's sort key; for an n/a, the reason and the reason's number."""
    value = getattr(run.record, figure)
    if value is None:
        reason = run.record.unavailable[figure]
        places = [absence.reason for absence in report.absences]
        return {"text": ABSENT, "reason": reason, "place": places.index(reason) + 1}
    order = relative_interval(run.record) if figure == "al_s_ci_high" else value
    return {"text": cell(figure, run.record), "reason": "", "order": order}


def _generation(report: Report) -> dict[str, Any]:
    generated, runs = report.generated, report.runs
    return (
        {
            "table": generation_table(generated, report.records),
            "plots": _plots(lambda shown: generation_figures(shown, runs), generated),
            "legend": generation_legend(generated[:MOST_RUNS], runs),
            "columns": _glossary(CSV_NAME, GENERATION_COLUMNS),
        }
        if generated
        else {}
    )


def _generation_text(report: Report) -> list[str]:
    table = generation_table(report.generated, report.records)
    return [f"## {GENERATION}", markdown_table(table), bullets(table.notes)] if table else []


def _of_tables(anchor: str, title: str, tables: Callable[[Report], Sequence[Table]]) -> Section:
    """Return a section of several tables, each with a title of its own."""

    def text(report: Report) -> list[str]:
        parts: list[str] = []
        for table in section.content(report):
            parts += [f"### {escape(table.title)}", *([markdown_table(table)] if table else []), bullets(table.notes)]
        return [f"## {title}", *parts] if parts else []

    section = Section(anchor, title, drawn=tables, text=text)
    return section


def _glossary(file: str, columns: Mapping[str, Column]) -> Table:
    rows = [(name, column.unit, column.description, column.better or "") for name, column in columns.items()]
    return Table((f"column of {file}", "unit", "meaning", "better"), rows, (0, 1, 2, 3))


def _plots(draw: Callable[[Sequence[Plotted]], list[Figure]], runs: Sequence[Plotted]) -> dict[str, Any]:
    """Return the figures of the first MOST_RUNS runs, and the number of all runs; empty where nothing is drawn."""
    figures = draw(runs[:MOST_RUNS])
    return {"figures": figures, "runs": len(runs)} if figures else {}


def _of_runs(
    draw: Callable[[Sequence[Run]], list[Figure]], has: Callable[[RunRecord], object]
) -> Callable[[Report], dict[str, Any]]:
    """Return what plots the runs whose record has what a plot needs."""
    return lambda report: _plots(draw, [run for run in report.runs if has(run.record)])


def _by_suite(draw: Callable[[Sequence[Run]], list[Figure]], report: Report) -> list[tuple[str, dict[str, Any]]]:
    """Return the title and the plots of each set."""
    suites = report.rows.suites
    drawn = [(suite.title, _plots(draw, [report.runs[row.number] for row in suite.rows])) for suite in suites]
    return [(title, plots) for title, plots in drawn if plots]


def _cost(report: Report) -> dict[str, Any]:
    plots = _by_suite(cost_figures, report)
    return {"plots": plots, "legend": {run.record.variant: run for run in report.runs}.values()} if plots else {}


def _learning(report: Report) -> dict[str, Any]:
    validated = [run for run in report.runs if len(run.record.quality_curve) > 1]
    curves, tables = _plots(curve_figures, validated), cost_tables(report.records)
    resumed = [run.name for run in validated[:MOST_RUNS] if run.record.begins_late]
    return {"curves": curves, "resumed": resumed, "tables": tables} if curves or tables else {}


def _learning_text(report: Report) -> list[str]:
    return [
        part
        for table in cost_tables(report.records)
        for part in (f"## Cost, {escape(table.title)}", markdown_table(table), *map(escape, table.notes))
    ]


def _energy(report: Report) -> list[str]:
    notes = [note for table in paper_tables(report.records) for note in table.notes if note != NO_ENERGY]
    return _listed("Energy: J/token against AEC", dict.fromkeys(notes))


def _listed(title: str, lines: Iterable[object]) -> list[str]:
    listed = bullets(map(str, lines))
    return [f"## {title}", listed] if listed else []


ANSWERS = "What these runs say"
STUDY = "The study of these runs"
ABSENCES, DAMAGED = "What is n/a, and why", "What is left out, and why"
SECTIONS = (
    # A study judges its ladder as a whole, which the rows' own answers do not.
    Section(
        "study",
        STUDY,
        drawn=lambda report: report.study,
        text=lambda report: [f"## {STUDY}", f"[{escape(report.study)}](<{report.study}>)"] if report.study else [],
    ),
    Section("answers", ANSWERS, drawn=_answers, text=_answers_text),
    Section("sizes", "What the models cost", lambda report: sizes_table(report.rows.suites)),
    Section(
        "cautions", "Before you use these figures", drawn=lambda report: cautions(report.records, report.unchecked)
    ),
    Section("results", "Results", lambda report: results_table(report.records, report.figures), _results),
    Section("failures", FAILURES, lambda report: failures_table(report.failures)),
    Section("generation", GENERATION, drawn=_generation, text=_generation_text),
    _of_tables("bits", FEWER_BITS, lambda report: bits_tables(report.widths)),
    _of_tables("crossings", CROSSINGS, lambda report: crossing_tables(report.generations)),
    Section("cost", "What a loss costs", drawn=_cost),
    Section(
        "axes",
        "Over the axes of a sweep",
        drawn=lambda report: [*axis_curves(report.runs), *axis_maps(report.runs)],
    ),
    Section("scaling", "Scaling", drawn=lambda report: scaling_figures(report.runs)),
    Section("shares", "A step by kind of work", drawn=lambda report: share_figures(report.profiled)),
    Section("optimizers", "Optimizers beside each other", lambda report: optimizers_table(report.records)),
    Section("rollouts", "Rewards, and what sampling answers took", lambda report: rollouts_table(report.records)),
    Section("wall", "Where the wall time went", lambda report: wall_time_table(report.records)),
    Section("ranks", "Ranks", lambda report: rank_table(report.records)),
    Section("meters", METERS, lambda report: meters_table(report.records)),
    Section("metrics", "Figures by suite and size", drawn=lambda report: _by_suite(metric_figures, report)),
    Section("steps", "Step times", drawn=_of_runs(step_time_figures, lambda record: record.step_time_percentiles_s)),
    Section("learning", "Cost to a quality", drawn=_learning, text=_learning_text),
    Section("evaluations", "Evaluations", lambda report: report.evaluations),
    Section("card", "Report card", drawn=lambda report: report.card),
    Section("changes", STAGE_CHANGES, drawn=lambda report: report.changes),
    Section("contexts", "Long contexts", drawn=lambda report: context_figures(report.contexts)),
    Section("noise", "Noise", drawn=lambda report: noise_floors(report.records)),
    Section("time", "Over time", drawn=_of_runs(over_time, lambda record: record.timelines)),
    Section(
        "energy", "Energy, and the paper's tables", drawn=lambda report: paper_tables(report.records), text=_energy
    ),
    Section("experts", "Experts", drawn=_of_runs(expert_figures, lambda record: record.experts)),
    Section("setup", "Runs and their settings", drawn=lambda report: settings_table(report.records)),
    Section(
        "environment",
        "Environment",
        drawn=lambda report: environments(report.records),
        text=lambda report: ["## Where the runs happened", *listed_environments(report.records)],
    ),
    Section(
        "absent", ABSENCES, drawn=lambda report: report.absences, text=lambda report: _listed(ABSENCES, report.absences)
    ),
    Section(
        "damaged", DAMAGED, drawn=lambda report: report.damaged, text=lambda report: _listed(DAMAGED, report.damaged)
    ),
    Section("columns", "What the columns mean", drawn=lambda report: _glossary("report.csv", COLUMNS)),
)
"""Every section, in the order of the page and of report.md."""
