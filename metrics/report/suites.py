"""The rows of a report in sets of one suite, size and conditions, in which only the model differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from efficientbench.basics.grouped import grouped
from efficientbench.metrics.analysis.conditions import NOT_RECORDED, group, shared_conditions
from efficientbench.metrics.analysis.noise import IdenticalRuns
from efficientbench.metrics.analysis.repeats import Group, combine, group_repeats
from efficientbench.metrics.analysis.rivals import Rivals
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import with_names
from efficientbench.metrics.report.paper.paper import BASELINES, SUITES, across_sizes, place_in_suite, suites_of

MATTERS = 0.01
"""The smallest difference of a cost that matters, where nobody says."""


@dataclass(frozen=True)
class Row:
    """A run, or its repeats, in a set."""

    number: int
    """The row's index among all rows of the report."""
    name: str
    """The row's name, as short as the set allows: the variant, where no other row has it."""
    record: RunRecord
    """The run's record, or the combined record of the repeats."""

    @property
    def marked(self) -> str:
        """Return the name with what a reader must know who has a plot or a table alone."""
        marks = {" (smoke)": self.record.smoke, " (speed only)": self.record.speed_only_reason}
        return self.name + "".join(mark for mark, holds in marks.items() if holds and mark not in self.name)


@dataclass(frozen=True)
class Suite:
    """Rows of one suite and size under the same conditions."""

    name: str
    size: str
    """The models' size; empty where models of several sizes are alternatives."""
    conditions: str
    """The conditions that distinguish the set from others of its suite and size."""
    rows: tuple[Row, ...]
    rivals: Rivals
    """The comparisons of the rows, in the same order."""
    matters: float = MATTERS
    """The smallest difference of a cost that matters, a share: a smaller one is no reason to choose a row."""

    @property
    def title(self) -> str:
        scale = " (smoke)" if self.rows[0].record.smoke else ""
        return ", ".join(part for part in (self.name, self.size, self.conditions) if part) + scale

    @property
    def baseline(self) -> int:
        """Return the index of the row that the others are compared with."""
        found = [place for place, row in enumerate(self.rows) if row.record.variant in BASELINES]
        return found[0] if found else 0


@dataclass(frozen=True)
class Rows:
    """The rows of a report: one for each run, and one for each group of repeats."""

    records: list[RunRecord]
    """One record for each row."""
    suites: list[Suite]
    """The sets of completed rows."""
    left_out: list[str]
    """A sentence for each record for which another one stands."""


def make_rows(records: Sequence[RunRecord], matters: float = MATTERS) -> Rows:
    """Return the rows of these runs, and their sets; `matters`: see `Suite`."""
    groups = group_repeats(records)
    rows = [combine(each) for each in groups]
    suites = [replace(suite, matters=matters) for suite in _suites(groups, rows)]
    return Rows(rows, suites, [line for each in groups for line in each.left_out])


def _suites(groups: Sequence[Group], rows: Sequence[RunRecord]) -> list[Suite]:
    sets: dict[tuple[str, str, str], list[Row]] = {}
    for number, ((name, row), suite) in enumerate(zip(with_names(rows), suites_of(rows), strict=True)):
        if row.status != "completed":
            continue
        key = suite, "" if across_sizes(suite) else row.size, group(row)
        # With its full name, which `_suite` shortens.
        sets.setdefault(key, []).append(Row(number, name, row))
    identical = IdenticalRuns([each for each in groups if each.first.status == "completed"])
    labels = _condition_labels({key: members[0].record for key, members in sets.items()})
    found = [_suite(key, labels[key], members, groups, identical) for key, members in sets.items()]
    return sorted(found, key=_order)


def _suite(
    key: tuple[str, str, str], label: str, members: Sequence[Row], groups: Sequence[Group], identical: IdenticalRuns
) -> Suite:
    ordered = sorted(members, key=lambda row: (place_in_suite(row.record.variant), row.record.size, row.number))
    variants = Counter(row.record.variant for row in ordered)
    models = Counter((row.record.variant, row.record.size) for row in ordered)
    rows = []
    for row in ordered:
        record = row.record
        if variants[record.variant] == 1 and key[1]:
            short = record.variant
        else:
            short = f"{record.variant} {record.size}" if models[record.variant, record.size] == 1 else row.name
        rows.append(replace(row, name=short))
    return Suite(key[0], key[1], label, tuple(rows), Rivals([groups[row.number] for row in ordered], identical))


def _condition_labels(first: dict[tuple[str, str, str], RunRecord]) -> dict[tuple[str, str, str], str]:
    """Return for each set the conditions that distinguish it from other sets of its suite and size."""
    alike = grouped((key[:2], (key, record)) for key, record in first.items())
    labels = {}
    for found in alike.values():
        conditions = [shared_conditions(record) for _, record in found]
        # The title of a set already says whether its runs are smoke runs.
        names = dict.fromkeys(name for texts in conditions for name in texts if name != "scale")
        differing = [name for name in names if len({texts.get(name, NOT_RECORDED) for texts in conditions}) > 1]
        told = ((key, shared_conditions(record, named=True)) for key, record in found)
        sets = [(key, {name: texts.get(name, NOT_RECORDED) for name in differing}) for key, texts in told]
        shared = {name: set.intersection(*(set(texts[name].split(", ")) for _, texts in sets)) for name in differing}
        for key, texts in sets:
            # Of a long condition, such as the layout, the label has only the parts that not all sets share.
            own = {name: [part for part in texts[name].split(", ") if part not in shared[name]] for name in differing}
            labels[key] = ", ".join(f"{name} {', '.join(parts) or texts[name]}" for name, parts in own.items())
    return labels


def _order(suite: Suite) -> tuple[int, int, int, int]:
    first = suite.rows[0].record
    least = min(row.record.parameters or 0 for row in suite.rows)
    return SUITES.index(suite.name), least, first.seq_len, first.devices
