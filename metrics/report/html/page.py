"""Builds `report.html`: the figures and tables of the runs, in the template `page.html`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from efficientbench.metrics.records.figure import Figure as Column
from efficientbench.metrics.records.generation.generation import GenerationRecord
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.answers import RULE, TITLES, answers, left_out, open_questions
from efficientbench.metrics.report.columns import COLUMNS
from efficientbench.metrics.report.comparison import noise_floors
from efficientbench.metrics.report.headline import HEADLINE, Absence, absences, cell, relative_interval, signs
from efficientbench.metrics.report.paper.paper import paper_tables
from efficientbench.metrics.report.plots.bar_plots import metric_figures, step_time_figures
from efficientbench.metrics.report.plots.context_plots import context_figures
from efficientbench.metrics.report.plots.difference_plots import difference_figures
from efficientbench.metrics.report.plots.generation_plots import generation_figures, generation_legend
from efficientbench.metrics.report.plots.loss_plots import cost_figures, curve_figures
from efficientbench.metrics.report.plots.run_plots import expert_figures, over_time
from efficientbench.metrics.report.plots.scaling_plots import scaling_figures
from efficientbench.metrics.report.plots.share_plots import share_figures
from efficientbench.metrics.report.plots.svg import MOST_RUNS, Figure, Run, key, numbered
from efficientbench.metrics.report.sections.cautions import Caution, cautions
from efficientbench.metrics.report.sections.checksums import TITLE, WHY
from efficientbench.metrics.report.sections.contexts import Context
from efficientbench.metrics.report.sections.environments import environments
from efficientbench.metrics.report.sections.failures import FailedRun, failures_table
from efficientbench.metrics.report.sections.generation import COLUMNS as GENERATION_COLUMNS
from efficientbench.metrics.report.sections.generation import CSV_NAME, beside, generation_table
from efficientbench.metrics.report.sections.loss_costs import cost_tables
from efficientbench.metrics.report.sections.meters import meters_table
from efficientbench.metrics.report.sections.optimizers import optimizers_table
from efficientbench.metrics.report.sections.rank_table import Profiled, rank_table, wall_time_table
from efficientbench.metrics.report.sections.rollouts import rollouts_table
from efficientbench.metrics.report.suites import Rows, Suite
from efficientbench.metrics.report.table import ABSENT, Table, number

Plotted = TypeVar("Plotted")

MOST_NAMED = 24
"""Most runs that one line names; its tooltip names all."""


def page(
    rows: Rows,
    damaged: Sequence[str],
    failures: Sequence[FailedRun] = (),
    evaluations: Table | None = None,
    generations: Sequence[GenerationRecord] = (),
    contexts: Sequence[Context] = (),
    profiled: Sequence[Profiled] = (),
    card: Table | None = None,
    unchecked: Sequence[str] = (),
) -> str:
    """Return the text of report.html."""
    content = _content(rows, generations)
    if unchecked:
        content["cautions"].append(Caution(TITLE, tuple(unchecked), (WHY,)))
    # Autoescape: a record's own text may hold anything. Only what `svg` built is taken as markup.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(
        **content,
        damaged=damaged,
        failures=failures_table(failures),
        evaluations=evaluations,
        card=card,
        contexts=context_figures(contexts),
        shares=share_figures(profiled),
        now=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M}",
        most_runs=MOST_RUNS,
        most_named=MOST_NAMED,
    )


def _content(rows: Rows, generations: Sequence[GenerationRecord]) -> dict[str, Any]:
    """Return the template's variables that follow from the rows and the generations."""
    records, runs = rows.records, numbered(rows.records)
    generated = beside(generations, records)
    reasons = absences(records)
    timed = [run for run in runs if run.record.step_time_percentiles_s]
    sampled = [run for run in runs if run.record.timelines]
    validated = [run for run in runs if len(run.record.quality_curve) > 1]
    mixtures = [run for run in runs if run.record.experts is not None]
    return {
        "summary": _summary(records, generations),
        "generation": generation_table(generated, records),
        "generation_plots": _plots(lambda shown: generation_figures(shown, runs), generated),
        "generation_legend": generation_legend(generated[:MOST_RUNS], runs),
        "answers": [(suite, list(zip(TITLES.values(), answers(suite), strict=True))) for suite in rows.suites],
        "questions": TITLES.values(),
        "rule": RULE,
        "open": [*open_questions(rows.suites), *filter(None, [left_out(rows)])],
        "differences": difference_figures(rows.suites),
        "cautions": cautions(records),
        "signs": signs(records),
        "headline": HEADLINE,
        "meaning": _meaning,
        "key": key,
        "results": [(run, [_cell(figure, run, reasons) for figure in HEADLINE]) for run in runs],
        "legend": {run.record.variant: run for run in runs}.values(),
        "cost": _by_suite(cost_figures, rows.suites, runs),
        "metrics": _by_suite(metric_figures, rows.suites, runs),
        "scaling": scaling_figures(runs),
        "steps": _plots(step_time_figures, timed),
        "curves": _plots(curve_figures, validated),
        "resumed": [run.name for run in validated[:MOST_RUNS] if run.record.resumed_after_steps],
        "cost_tables": cost_tables(records),
        "noise": noise_floors(records),
        "optimizers": optimizers_table(records),
        "rollouts": rollouts_table(records),
        "wall": wall_time_table(records),
        "ranks": rank_table(records),
        "meters": meters_table(records),
        "time": _plots(over_time, sampled),
        "paper": paper_tables(records),
        "experts": _plots(expert_figures, mixtures),
        "settings": _settings(runs),
        "environments": environments(records),
        "absences": reasons,
        "columns": _glossary("report.csv", COLUMNS),
        "generation_columns": _glossary(CSV_NAME, GENERATION_COLUMNS),
    }


def _glossary(file: str, columns: Mapping[str, Column]) -> Table:
    rows = [(name, column.unit, column.description, column.better or "") for name, column in columns.items()]
    return Table((f"column of {file}", "unit", "meaning", "better"), rows, (0, 1, 2, 3))


def _plots(draw: Callable[[Sequence[Plotted]], list[Figure]], runs: Sequence[Plotted]) -> dict[str, Any]:
    """Return the figures of the first MOST_RUNS runs, and the number of all runs; empty where nothing is drawn."""
    figures = draw(runs[:MOST_RUNS])
    return {"figures": figures, "runs": len(runs)} if figures else {}


def _by_suite(
    draw: Callable[[Sequence[Run]], list[Figure]], suites: Sequence[Suite], runs: Sequence[Run]
) -> list[tuple[str, dict[str, Any]]]:
    """Return the title and the plots of each set."""
    drawn = [(suite.title, _plots(draw, [runs[row.number] for row in suite.rows])) for suite in suites]
    return [(title, plots) for title, plots in drawn if plots]


def _summary(records: Sequence[RunRecord], generations: Sequence[GenerationRecord]) -> str:
    """Return how many runs the report covers, how they ended, on which devices and when."""
    if not records:
        where = ", ".join(dict.fromkeys(each.device_name for each in generations))
        return f"no training, generation with {len(generations):,} models on {where}"
    states = {state: sum(record.status == state for record in records) for state in ("completed", "stopped", "failed")}
    ended = ", ".join(f"{count} {state}" for state, count in states.items() if count)
    devices = list(dict.fromkeys(f"{record.devices} × {record.device_name}" for record in records))
    named = devices[:4] + (["…"] if len(devices) > 4 else [])
    days = sorted(record.started_at[:10] for record in records)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return f"{len(records):,} run{'s' if len(records) > 1 else ''} ({ended}) on {', '.join(named)}, {when}"


def _meaning(figure: str) -> str:
    row = COLUMNS[figure]
    better = f"; {row.better} is better" if row.better else ""
    return f"{figure}: {row.description}" + (f" ({row.unit})" if row.unit else "") + better


def _cell(figure: str, run: Run, reasons: Sequence[Absence]) -> dict[str, Any]:
    """Return a figure's text and its column's sort key; for an n/a, the reason and the reason's number."""
    value = getattr(run.record, figure)
    if value is None:
        reason = run.record.unavailable[figure]
        places = [absence.reason for absence in reasons]
        return {"text": ABSENT, "reason": reason, "place": places.index(reason) + 1}
    order = relative_interval(run.record) if figure == "al_s_ci_high" else value
    return {"text": cell(figure, run.record), "reason": "", "order": order}


def _settings(runs: Sequence[Run]) -> Table:
    """Return the table of the runs' settings: model, budget, layout."""
    header = (
        *("run", "status", "parameters", "active", "dtype", "sequence", "micro batch", "global batch", "layout"),
        *("steps", "tokens", "tokens/param", "unique tokens", "epochs", "keys/query", "seed", "duration"),
    )
    rows = []
    for run in runs:
        record = run.record
        sizes = {axis: getattr(record, axis) for axis in ("tp", "pp", "dp", "cp", "ep")}
        layout = " ".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1)
        keys = number(record.keys_read_per_query, ",.0f")
        if record.dense_keys_per_query is not None:
            keys += f" of {record.dense_keys_per_query:,.0f}"
        rows.append(
            (
                *(run.name, record.status, number(record.parameters, ","), number(record.parameters_active, ",")),
                record.dtype,
                *(f"{record.seq_len:,}", f"{record.micro_batch_size:,}", f"{record.global_batch_size:,}"),
                *(layout or "1 rank", f"{record.steps_measured:,}", f"{record.tokens:,}"),
                number(record.tokens_per_parameter, ".3g"),
                *(number(record.unique_tokens, ","), number(record.epochs, ".3g"), keys, str(record.seed)),
                f"{record.duration_s:,.0f} s",
            )
        )
    return Table(header, rows, (0, 1, 4, 8))
