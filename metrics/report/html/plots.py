"""The sections that are plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from efficientbench.metrics.analysis.conditions import differing, group
from efficientbench.metrics.definitions import t_quantile_95
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import SHOWN, Shown, unique_names
from efficientbench.metrics.report.html.curves import Curve, curves
from efficientbench.metrics.report.html.experts import expert_load
from efficientbench.metrics.report.html.over_time import over_time
from efficientbench.metrics.report.html.pareto import Point, pareto
from efficientbench.metrics.report.html.rows import Bar, Spread, bars, spreads
from efficientbench.metrics.report.html.svg import Look, figure, mark, svg

MOST = 48
"""Runs that plots with a row or a figure for each run show; the table has all of them."""

MOST_OUTLIERS = 4
"""Outlying steps that are named for a run."""

_TITLES = {
    "tokens_per_s": "Throughput, tokens/s",
    "al_s": "Latency (AL), ms a step",
    "amu_gb": "Memory (AMU), GB",
    "pcu": "Utilization (PCU)",
    "mfu": "MFU",
    "aec_w": "Mean power (AEC), W a device",
    "energy_j_per_token": "Energy, J/token",
    "validation_loss": "Validation loss, nats",
}


@dataclass(frozen=True)
class Run:
    """A record with its place in the report and the look of its variant."""

    number: int
    name: str
    look: Look
    record: RunRecord


def number(records: Sequence[RunRecord]) -> list[Run]:
    """The runs in their order; the same variant looks the same everywhere."""
    variants = list(dict.fromkeys(record.variant for record in records))
    looks = {variant: Look.of(order) for order, variant in enumerate(variants)}
    shown = unique_names(records)
    return [Run(place, shown[place], looks[record.variant], record) for place, record in enumerate(records)]


def _grid(figures: Sequence[str]) -> str:
    return f'<div class="grid">{"".join(figures)}</div>'


def _few(runs: Sequence[Run]) -> tuple[Sequence[Run], str]:
    if len(runs) <= MOST:
        return runs, ""
    return runs[:MOST], f'<p class="note">The first {MOST} of {len(runs):,} runs; the table has all of them.</p>'


def legend(runs: Sequence[Run]) -> str:
    """The variants' looks."""
    looks = {run.record.variant: run.look for run in runs}
    keys = [
        f"<li>{svg(12, 12, variant, [mark(6, 6, look, 'point on', 4.2)])}{escape(variant)}</li>"
        for variant, look in looks.items()
    ]
    return f'<ul class="legend">{"".join(keys)}</ul>'


def costs(runs: Sequence[Run]) -> str:
    """Validation loss against energy, throughput and memory."""
    shown = {column.metric: column for column in SHOWN}
    figures = []
    for metric, title, label in (
        ("energy_j_per_token", "Loss against energy", "J/token"),
        ("tokens_per_s", "Loss against throughput", "tokens/s"),
        ("amu_gb", "Loss against memory", "AMU, GB"),
    ):
        column = shown[metric]
        points = _points(runs, column)
        if not points:
            reasons = dict.fromkeys(_why(run.record, metric) for run in runs)
            figures.append(figure(title, "", f"n/a: {'; '.join(reasons)}", "empty"))
            continue
        missing = len(runs) - len(points)
        note = f"{missing} of {len(runs)} runs have no such figure." if missing else ""
        figures.append(
            pareto(title, label, points, "higher" if column.better == "higher" else "lower", column.text, note)
        )
    mixed = differing([run.record for run in runs])
    lead = "<p>Filled marks are runs that no other run beats in both; a line joins them."
    if mixed:
        lead += (
            f" It joins only runs of which all but the model is the same; these differ in {escape(', '.join(mixed))}."
        )
    return f"{lead}</p>{legend(runs)}{_grid(figures)}"


def _points(runs: Sequence[Run], column: Shown) -> list[Point]:
    points = []
    for run in runs:
        cost, loss = getattr(run.record, column.metric), run.record.validation_loss
        if cost is not None and loss is not None:
            shared = group(run.record, energy=column.metric == "energy_j_per_token")
            points.append(Point(run.number, run.name, cost, loss, run.look, shared))
    return points


def _why(record: RunRecord, metric: str) -> str:
    return record.unavailable.get(metric) or record.unavailable.get("validation_loss", "")


def metrics(runs: Sequence[Run]) -> str:
    """A bar for each run, with the interval where one is known."""
    chosen, cut_note = _few(runs)
    shown = {column.metric: column for column in SHOWN}
    figures = []
    for metric, title in _TITLES.items():
        values = [_bar(run, metric) for run in chosen]
        if any(bar.value is not None for bar in values):
            figures.append(bars(title, values, shown[metric].text))
    lead = (
        "<p>Whiskers are 95 % confidence intervals: of time over the measured steps, of the loss over the "
        "validation's batches, of repeats over the runs. Where two of them overlap, this figure "
        "does not tell the runs apart. Mean power alone ranks a slow, idle device as thrifty: compare energies by "
        "J/token.</p>"
    )
    return f"{lead}{cut_note}{_grid(figures)}" if figures else ""


def _bar(run: Run, metric: str) -> Bar:
    record = run.record
    value = getattr(record, metric)
    low = high = None
    if record.al_s and record.al_s_ci_low and record.al_s_ci_high and value is not None:
        if metric == "al_s":
            low, high = record.al_s_ci_low, record.al_s_ci_high
        elif metric == "tokens_per_s" and record.al_s_ci_low > 0:  # the tokens of a step are the same in each
            low, high = value * record.al_s / record.al_s_ci_high, value * record.al_s / record.al_s_ci_low
    if metric == "validation_loss" and value is not None and record.validation_loss_se is not None:
        low, high = value - 1.96 * record.validation_loss_se, value + 1.96 * record.validation_loss_se
    deviation = record.repeat_std.get(metric)
    if deviation is not None and value is not None and metric != "al_s":
        margin = t_quantile_95(record.repeats - 1) * deviation / math.sqrt(record.repeats)
        low, high = value - margin, value + margin
    return Bar(run.number, run.name, run.look, value, low, high)


def step_times(runs: Sequence[Run]) -> str:
    """The distribution of every run's step times, absolute and against its own median."""
    chosen, cut_note = _few([run for run in runs if run.record.step_time_percentiles_s])
    values = [Spread(run.number, run.name, run.look, run.record.step_time_percentiles_s or []) for run in chosen]
    if not values:
        return ""
    lead = "<p>Box: the middle half of the steps, its line the median; thin line: 1 to 99 %; dot: the slowest step.</p>"
    figures = [
        spreads("Step time", values, relative=False),
        spreads("Step time against the run's own median", values, relative=True),
    ]
    return f"{lead}{cut_note}{_grid(figures)}{_outliers(chosen)}"


def _outliers(runs: Sequence[Run]) -> str:
    """The slowest steps of each run, with their cause where it is known."""
    items = []
    for run in runs:
        slowest = sorted(run.record.outliers, key=lambda outlier: -outlier.times_median)[:MOST_OUTLIERS]
        steps = [f"step {each.step} × {each.times_median:.1f} ({each.cause or 'cause unknown'})" for each in slowest]
        told = ", ".join(steps)
        more = (run.record.outlier_steps or 0) - len(slowest)
        if told:
            items.append(f"<li>{escape(run.name)}: {escape(told)}{f', and {more:,} more' if more > 0 else ''}</li>")
    return f"<h3>Outlying steps, against the median</h3><ul>{''.join(items)}</ul>" if items else ""


def times(runs: Sequence[Run]) -> str:
    """Memory, utilization and power of each run over time."""
    chosen, cut_note = _few([run for run in runs if run.record.timelines])
    figures = [over_time(run.number, run.name, run.record, run.look) for run in chosen]
    figures = [plot for plot in figures if plot]
    if not figures:
        return ""
    lead = (
        "<p>Line: mean over the devices; band: from the lowest device to the highest sample. Shaded: the measured "
        "window. Orange: another process on a device.</p>"
    )
    return f"{lead}{cut_note}{_grid(figures)}"


def convergence(runs: Sequence[Run]) -> str:
    """Validation losses against tokens, seconds and joules."""
    chosen, cut_note = _few([run for run in runs if len(run.record.quality_curve) > 1])
    figures = []
    for field, title, label in (
        ("tokens", "Loss by tokens", "tokens trained on"),
        ("train_s", "Loss by time", "s of training, measured steps"),
        ("energy_j", "Loss by energy", "J, measured steps"),
    ):
        # A resumed run has measured its last attempt alone: its curve would begin in the middle.
        known = [run for run in chosen if field == "tokens" or not run.record.resumed_after_steps]
        found = [curve for run in known if len((curve := _curve(run, field)).points) > 1]
        if found:
            figures.append(curves(title, label, found))
    resumed = ", ".join(escape(run.name) for run in chosen if run.record.resumed_after_steps)
    note = f'<p class="note">By tokens only, since time and energy of earlier attempts are not known: {resumed}.</p>'
    return f"{cut_note}{note if resumed else ''}{_grid(figures)}" if figures else ""


def _curve(run: Run, field: str) -> Curve:
    points = [(getattr(point, field), point.loss) for point in run.record.quality_curve]
    return Curve(run.number, run.name, run.look, [(x, y) for x, y in points if x is not None and y is not None])


def experts(runs: Sequence[Run]) -> str:
    """The load of every mixture's experts."""
    chosen, cut_note = _few([run for run in runs if run.record.experts is not None])
    figures = [expert_load(run.number, run.name, run.record.experts) for run in chosen if run.record.experts]
    if not figures:
        return ""
    lead = "<p>Tokens of each expert in the measured window over the mean of its layer's experts.</p>"
    return f"{lead}{cut_note}{_grid(figures)}"
