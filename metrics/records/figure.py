"""Defines the row of a figure, from which record, CSV, pages, terminal and TensorBoard follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field

from efficientbench.basics.errors import MetricsError

Value = TypeVar("Value")
Better = Literal["lower", "higher"]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[int, Field(ge=1, lt=2**63)]
Few = Annotated[int, Field(ge=0, le=10**9)]
"""A number of values that a spread is over: Student's t converges for these."""
LARGEST = 1e300
"""A figure beyond it is no measurement, and would overflow in reports."""


MOST_NAME_BYTES = 255
"""Largest size of a name in UTF-8, the limit of file systems."""


def short_name(name: str) -> str:
    """Return a name from which names of files are made. Raises ValueError: it is too long for a file's name."""
    if (size_bytes := len(name.encode(errors="replace"))) > MOST_NAME_BYTES:
        raise ValueError(
            f"a name has at most {MOST_NAME_BYTES} bytes in UTF-8, as that of a file; this has {size_bytes:,}"
        )
    return name


Name = Annotated[str, AfterValidator(short_name)]
"""Name of a run, its variant or its size."""


def count(value: float) -> str:
    """Return a count in short: 1,543,714,304 is '1.54B'."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return three_digits(value / size) + unit
    return f"{value:.0f}"


ENERGY_UNITS = ((3.6e6, "kWh"), (1e3, "kJ"), (1.0, "J"))
"""Units of an energy in joules, the largest first."""


def scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Return a value in the largest of its units that it holds: an energy of 4.32e6 J is '1.2 kWh'."""
    size, unit = next((each for each in units if value >= each[0]), units[-1])
    return f"{value / size:,.3g} {unit}"


def three_digits(value: float) -> str:
    """Return the number with three digits: 0.5 is '0.500'."""
    return f"{value:#.3g}".rstrip(".")


def percent(value: float) -> str:
    """Return a ratio in percent: 0.413 is '41.3%'."""
    return f"{value:.1%}"


def average(values: Sequence[Any]) -> Any:
    """Return the mean of numbers, all texts in one, or whether any is true."""
    first = values[0]
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, str):
        return " and ".join(dict.fromkeys(values))
    mean = math.fsum(values) / len(values)
    return round(mean) if isinstance(first, int) else mean


def furthest_from_1(ratios: Sequence[float]) -> float:
    """Return the ratio that is furthest from 1, up or down."""
    return max(ratios, key=lambda ratio: abs(math.log(ratio)))


@dataclass(frozen=True)
class Headline:
    """How the table of results shows a figure."""

    place: int
    """Position of the figure's column, from the left."""
    title: str
    text: Callable[[float], str]
    """Returns a cell's text from the value."""
    plot: str = ""
    """Title of the figure's bars in report.html; empty where it has none."""


@dataclass(frozen=True)
class Figure:
    """The row of one figure, without its name and type, which are those of its field in the record."""

    unit: str
    """The figure's unit; empty for a text, a count or a ratio."""
    meaning: str
    formula: Callable[[Any], Any] | None = None
    """Computes the figure from `records.facts.Measured`; raises MetricsError with the reason where it cannot. None: the
    run's configuration, or the measurement of all ranks, has the figure under the same name."""
    source: str = ""
    """The publication that defines the figure."""
    known_as: str = ""
    """The same figure in nanotron's benchmark CSV, llm-foundry's benchmark table or Megatron's log."""
    better: Better | None = None
    """Which values are better; None: no value is better than another."""
    headline: Headline | None = None
    """The figure's column in the table of results; None: it has none."""
    compared: str = ""
    """The figure's title, with the unit, in comparisons of runs; empty: it is not compared."""
    over_repeats: Callable[[list[Any]], Any] | None = average
    """Combines the values of several repeats; None: each repeat has its own."""

    @property
    def place(self) -> float:
        """Return the figure's position among figures: those of the table of results come first, in its order."""
        return self.headline.place if self.headline else math.inf

    @property
    def description(self) -> str:
        """Return meaning and source."""
        return f"{self.meaning}; {self.source}" if self.source else self.meaning

    def __call__(self, schema: dict[str, Any]) -> None:
        """Add the row to its field's JSON schema."""
        about = {"description": self.description, "unit": self.unit, "known_as": self.known_as, "better": self.better}
        schema |= {key: value for key, value in about.items() if value}


def rows_of(table: type[BaseModel]) -> dict[str, Figure]:
    """Return the rows of a table by the figures' names, in the order of every report."""
    rows = {name: field.json_schema_extra for name, field in table.model_fields.items()}
    return {name: row for name, row in rows.items() if isinstance(row, Figure)}


def computed(
    rows: Mapping[str, Figure], measured: Any, found: Callable[[str], Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the value of each figure, by its formula over `measured`, and the reason for each that is None.

    `found` returns a figure without a formula by its name. Both raise MetricsError with the reason where it is absent.
    """
    values: dict[str, Any] = {}
    unavailable = {}
    for name, row in rows.items():
        try:
            values[name] = finite(found(name) if row.formula is None else row.formula(measured))
        except MetricsError as error:
            values[name], unavailable[name] = None, str(error)
    return values, unavailable


def finite(value: Any) -> Any:
    """Return the value. Raises MetricsError for a number that is not finite, or too large to be reported."""
    if isinstance(value, float) and not abs(value) <= LARGEST:
        raise MetricsError(f"the number is not finite ({value})")
    return value


def known(value: Value | None, reason: str) -> Value:
    """Return the value. Raises MetricsError with the reason where it is None."""
    if value is None:
        raise MetricsError(reason)
    return value


def fact(unit: str, meaning: str, known_as: str = "", default: Any = ..., headline: Headline | None = None) -> Any:
    """Return the record's field of a fact, which every record has."""
    return Field(default, json_schema_extra=Figure(unit, meaning, known_as=known_as, headline=headline))


def figure(
    unit: str,
    meaning: str,
    formula: Callable[[Any], Any] | None = None,
    *,
    source: str = "",
    known_as: str = "",
    better: Better | None = None,
    headline: Headline | None = None,
    compared: str = "",
    over_repeats: Callable[[list[Any]], Any] | None = average,
) -> Any:
    """Return the record's field of a measured figure, which is None where `unavailable` has the reason."""
    row = Figure(unit, meaning, formula, source, known_as, better, headline, compared, over_repeats)
    return Field(None, json_schema_extra=row)
