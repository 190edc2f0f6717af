"""Plots of figures over a run's scale: model size, sequence length or number of devices. One line a variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from efficientbench.metrics.analysis.conditions import shared_conditions
from efficientbench.metrics.formulas.student import half_interval_95
from efficientbench.metrics.records.record import FIGURES, RunRecord
from efficientbench.metrics.report.headline import HEADLINE
from efficientbench.metrics.report.plots.line_plots import Line, Point, plot_lines
from efficientbench.metrics.report.plots.svg import Figure, Run

Key = tuple[str, ...]


@dataclass(frozen=True)
class _Scale:
    """One scale over which runs differ, and what runs of one line must share."""

    label: str
    """Label of the horizontal axis."""
    at: Callable[[RunRecord], float]
    may_differ: tuple[str, ...]
    """Conditions that may differ along a line."""
    further: Callable[[RunRecord], Key]
    """Returns what else must be the same along a line."""
    name: Callable[[RunRecord], str]
    """Returns a line's name from one of its records."""


_SIZES = _Scale(
    "parameters, active",
    lambda record: record.parameters_active or 0,
    ("tokens",),
    lambda record: (record.variant,),
    lambda record: record.variant,
)
_SEQUENCES = _Scale(
    "sequence length, tokens",
    lambda record: record.seq_len,
    # With the same tokens a step, longer sequences are fewer.
    ("sequence", "global_batch", "tokens"),
    lambda record: (record.variant, record.size, str(record.global_batch_size * record.seq_len)),
    lambda record: record.backbone,
)
_LONGER = replace(_SEQUENCES, may_differ=("sequence", "tokens"), further=lambda record: (record.variant, record.size))
_STRONG = _Scale(
    "devices",
    lambda record: record.devices,
    ("device", "layout", "tokens"),
    lambda record: (record.variant, record.size, record.device_name),
    lambda record: record.backbone,
)
_WEAK = replace(
    _STRONG,
    may_differ=(*_STRONG.may_differ, "global_batch"),
    further=lambda record: (*_STRONG.further(record), f"{record.global_batch_size / record.devices:g}"),
)


def scaling_figures(runs: Sequence[Run]) -> list[Figure]:
    """Return the plots for which completed runs of one variant differ in size, sequence length or devices."""
    completed = [run for run in runs if run.record.status == "completed"]
    found = []
    for metric, word in (("energy_j_per_token", "Energy"), ("tokens_per_s", "Speed"), ("validation_loss", "Loss")):
        found += _figure(f"{word} over sizes", metric, _SIZES, completed)
    for metric, word in (("tokens_per_s", "Speed"), ("amu_gb", "Memory")):
        found += _figure(f"{word} over sequence lengths", metric, _SEQUENCES, completed)
        found += _figure(f"{word} over sequence lengths, with as many sequences a step", metric, _LONGER, completed)
    found += _efficiency("Strong scaling: one global batch on more devices", _STRONG, completed)
    found += _efficiency("Weak scaling: a global batch that grows with the devices", _WEAK, completed)
    return found


def _figure(title: str, metric: str, scale: _Scale, runs: Sequence[Run]) -> list[Figure]:
    """Return the plot of a figure's values; nothing where no line has two points."""
    lines = _lines(scale, runs, lambda members: _points(scale, metric, members))
    label = f"{HEADLINE[metric].title} ({FIGURES[metric].better} is better)"
    return [Figure(title, plot_lines(title, scale.label, label, lines))] if lines else []


def _efficiency(title: str, scale: _Scale, runs: Sequence[Run]) -> list[Figure]:
    """Return the plot of tokens/s a device, in percent of that on the fewest devices."""
    lines = _lines(scale, runs, lambda members: _relative(_points(scale, "tokens_per_s_per_device", members)))
    note = "Of each number of devices the fastest layout; 100 % is the fewest devices' tokens/s a device."
    return [Figure(title, plot_lines(title, scale.label, "tokens/s a device, %", lines), note)] if lines else []


def _lines(scale: _Scale, runs: Sequence[Run], points_of: Callable[[Sequence[Run]], tuple[Point, ...]]) -> list[Line]:
    """Return a line for each set of runs that differ in the scale alone, if it has two or more points."""
    sets: dict[Key, list[Run]] = {}
    for run in runs:
        shared = shared_conditions(run.record)
        same = (text for name, text in shared.items() if name not in scale.may_differ)
        sets.setdefault((*scale.further(run.record), *same), []).append(run)
    found = []
    for members in sets.values():
        points = points_of(members)
        if len(points) > 1:
            found.append(Line(members[0].number, scale.name(members[0].record), members[0].look, points))
    return found


def _points(scale: _Scale, metric: str, runs: Sequence[Run]) -> tuple[Point, ...]:
    """Return the best figure at each value of the scale, in ascending order."""
    sign = -1 if FIGURES[metric].better == "higher" else 1
    best: dict[float, Point] = {}
    for run in runs:
        point = _point(scale.at(run.record), metric, run.record)
        if point is not None and (point.at not in best or sign * point.value < sign * best[point.at].value):
            best[point.at] = point
    return tuple(best[at] for at in sorted(best))


def _point(at: float, metric: str, record: RunRecord) -> Point | None:
    """Return a figure with the 95 % interval of its repeats; None if it is absent, or the loss of a speed-only run."""
    value = getattr(record, metric)
    if value is None or value <= 0 or at <= 0 or (metric == "validation_loss" and record.speed_only_reason):
        return None
    deviation = record.repeat_std.get(metric)
    margin = None if deviation is None else half_interval_95(deviation / record.repeats**0.5, record.repeats)
    return Point(at, value) if margin is None else Point(at, value, value - margin, value + margin)


def _relative(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """Return the points in percent of the first."""
    if not points:
        return points
    unit = 100 / points[0].value
    ends = ([None if end is None else end * unit for end in (point.low, point.high)] for point in points)
    return tuple(Point(point.at, point.value * unit, *end) for point, end in zip(points, ends, strict=True))
