"""Thresholds on the change of a figure, such as `tokens_per_s<-3%`, for programs that decide by an exit code.

Where the noise between runs is known, the figure's own 95 % interval decides: it lies beyond the threshold, within it,
or on both sides of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, get_args

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.analysis.compare import COSTS, Comparison, why_not
from efficientbench.metrics.formulas.ratio import MIN_REPEATS, Ratio
from efficientbench.metrics.records.figures import Metrics

_FORM = re.compile(r"\s*(?P<metric>\w+)\s*(?P<sign>[<>])\s*(?P<percent>[+-]?\d+(?:\.\d+)?)\s*%\s*")
_ROUNDING = 1e-9


def _is_number(name: str) -> bool:
    return not {int, float}.isdisjoint(get_args(Metrics.model_fields[name].annotation))


METRICS = (*filter(_is_number, Metrics.model_fields), *COSTS)
"""Figures that can have a threshold: every measured number of a record, and the costs to a loss."""


@dataclass(frozen=True)
class Threshold:
    """A change of a figure, B over A, that must not be exceeded."""

    metric: str
    below: bool
    """Whether the threshold fails below `percent`; else above."""
    percent: float
    """Change beyond which the threshold fails, in percent."""

    @classmethod
    def of(cls, text: str) -> Threshold:
        """Parse a threshold such as `tokens_per_s<-3%`.

        Raises MetricsError if the text has another form, no record has such a figure, or the change is impossible.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise MetricsError(f"--fail-if {text!r} has another form than FIGURE<-3% or FIGURE>3%")
        metric, percent = found["metric"], float(found["percent"])
        if metric not in METRICS:
            near = get_close_matches(metric, METRICS, 1)
            hint = f"did you mean {near[0]}?" if near else "docs/columns.md lists them"
            raise MetricsError(f"--fail-if {text!r}: {metric} is no number that a record measures ({hint})")
        if percent <= -100:
            raise MetricsError(f"--fail-if {text!r}: no figure changes by -100% or less")
        return cls(metric, found["sign"] == "<", percent)

    def __str__(self) -> str:
        return f"{self.metric}{'<' if self.below else '>'}{self.percent:g}%"


State = Literal["failed", "passed", "undecided"]


@dataclass(frozen=True)
class Outcome:
    """The result of one threshold for two groups of runs."""

    threshold: Threshold
    state: State
    """'failed': the interval lies entirely beyond the threshold; 'passed': entirely within it; 'undecided': neither."""
    why: str
    ratio: Ratio | None
    """The figure's ratio; None where it has none."""


def judge(thresholds: Sequence[Threshold], comparison: Comparison) -> tuple[Outcome, ...]:
    """Return the outcome of each threshold."""
    ratios = {ratio.metric: ratio for ratio in (*comparison.ratios, *comparison.costs)}
    first, second = comparison.first, comparison.second
    outcomes = []
    for threshold in thresholds:
        metric = threshold.metric
        if metric in COSTS and metric not in ratios:
            reason = comparison.unavailable.get(metric) or comparison.unavailable["cost"]
            outcomes.append(Outcome(threshold, "undecided", reason, None))
            continue
        why = why_not(metric, [*first.records, *second.records])
        if why is not None:
            outcomes.append(Outcome(threshold, "undecided", why, None))
            continue
        ratio = ratios.get(metric) or comparison.judge.ratio(metric)
        outcomes.append(Outcome(threshold, *_judged(threshold, ratio), ratio))
    return tuple(outcomes)


def _judged(threshold: Threshold, ratio: Ratio) -> tuple[State, str]:
    """Return the state of a threshold by the figure's ratio, and the sentence that says why."""
    change = f"{ratio.ratio - 1:+.2%}"
    if ratio.objection is not None:
        return "undecided", f"{change}, not judged: {ratio.objection.why}"
    if ratio.measurable is None or ratio.low is None or ratio.high is None:
        return "undecided", (
            f"{change}, of {ratio.runs[0]} and {ratio.runs[1]} runs without the noise between runs: it takes "
            f"{MIN_REPEATS} repeats on each side, or {MIN_REPEATS} runs of one model beside them"
        )
    said = f"{change}, 95 % interval {ratio.low - 1:+.2%} to {ratio.high - 1:+.2%} ({ratio.basis})"
    said += f"; {ratio.carried}" if ratio.carried else ""
    limit = 1 + threshold.percent / 100
    # How far both ends of the interval lie within the threshold, the worse end first.
    ends = (ratio.low - limit, ratio.high - limit) if threshold.below else (limit - ratio.high, limit - ratio.low)
    if ends[1] < -_ROUNDING:
        return "failed", said
    return ("passed", said) if ends[0] >= -_ROUNDING else ("undecided", f"{said} holds {threshold.percent:+g}%")
