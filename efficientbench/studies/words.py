"""The words of a study's page: sizes, figures and intervals as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from efficientbench.metrics.records.figure import count
from efficientbench.metrics.report.plots.svg import Figure
from efficientbench.metrics.report.table import ABSENT, Table
from efficientbench.studies.ladder import Cell
from efficientbench.studies.verdict import Interval


@dataclass(frozen=True)
class Part:
    """One part of the page."""

    anchor: str
    title: str
    lines: tuple[str, ...] = ()
    """Sentences above the table."""
    table: Table | None = None
    figures: Sequence[Figure] = ()

    def __bool__(self) -> bool:
        return bool(self.lines or self.table)


def cell_text(cell: Cell) -> str:
    """Return a size and its tokens."""
    return f"{cell.size}, {count(cell.tokens)} tokens"


def listed(names: Sequence[str]) -> str:
    """Return names in a sentence."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def numbers(values: Iterable[float]) -> str:
    """Return numbers with commas."""
    return ", ".join(f"{value:g}" for value in values)


def percent(share: float, form: str = ".0f") -> str:
    """Return a share in percent."""
    return f"{100 * share:{form}} %".replace("-", "−")


def signed(value: float) -> str:
    """Return a difference in nats with its sign."""
    return f"{value:+.3f}".replace("-", "−")


def difference_text(difference: Interval | None) -> str:
    """Return a difference in nats with its interval; a dash for the baseline's."""
    if difference is None:
        return "–"
    return f"{signed(difference.mean)} ({signed(difference.low)} to {signed(difference.high)})"


def lead_text(lead: Interval) -> str:
    """Return a distance in nats with its interval."""
    return f"{lead.mean:.3f} ({lead.low:.3f} to {lead.high:.3f})".replace("-", "−")


def ratio_text(ratio: Interval) -> str:
    """Return a ratio with its interval."""
    return "1" if ratio.low == ratio.high == 1 else f"{ratio.mean:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def loss_text(loss: Interval | None) -> str:
    """Return a loss with half of its interval."""
    return ABSENT if loss is None else f"{loss.mean:.3f} (±{(loss.high - loss.low) / 2:.3f})"


def nats(value: float | None) -> str:
    """Return a standard deviation in nats."""
    return ABSENT if value is None else f"{value:.4f}"


def figure(value: float | None) -> str:
    """Return a cost."""
    return ABSENT if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def hours_text(hours: float | None) -> str:
    """Return device-hours with their unit."""
    return "device-hours n/a" if hours is None else f"{figure(hours)} device-hours"


def chance(probability: float) -> str:
    """Return a probability; 2,000 draws tell nothing beyond two digits."""
    return "> 0.99" if probability > 0.995 else "< 0.01" if probability < 0.005 else f"{probability:.2f}"
