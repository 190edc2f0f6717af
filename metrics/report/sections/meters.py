"""What meters beside the devices' own counted, such as a socket's or a rack's, beside the devices' energy."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.metrics.formulas.device_use import MeterUse
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import with_names
from efficientbench.metrics.report.table import ABSENT, Table, number

TITLE = "Meters beside the devices"
HEADER = ("run", "meter", "source", "energy, J", "J/token", "power, W", "idle, W", "by", "devices, J", "devices' scope")
_NOTE = (
    "Energy of the measured window, as the sensors of measurement.meters read it. One meter may count what another "
    "counts, too: rows are not to be added up, and no other figure of the report contains them."
)


def meters_table(records: Sequence[RunRecord]) -> Table:
    """Return a row for each meter of each run, beside the energy of the run's devices."""
    read = [(name, record, use) for name, record in with_names(records) for use in record.meters]
    absent = [f"{name}, {use.name}: {use.unavailable}." for name, _, use in read if use.unavailable]
    doubted = [f"{name}, {use.name}: {use.energy_doubt}." for name, _, use in read if use.energy_doubt]
    rows = [_row(*each) for each in read]
    return Table(HEADER, rows, (0, 1, 2, 7, 9), TITLE, (_NOTE, *dict.fromkeys(absent + doubted)))


def _row(name: str, record: RunRecord, use: MeterUse) -> tuple[str, ...]:
    per_token = use.energy_j / record.tokens if use.energy_j is not None and record.tokens else None
    return (
        *(name, use.name, use.source),
        number(use.energy_j, ",.1f"),
        number(per_token, ".4g"),
        number(use.power_w, ",.1f"),
        number(use.power_idle_w, ",.1f"),
        use.energy_source or ABSENT,
        number(record.energy_j, ",.1f"),
        record.energy_scope or ABSENT,
    )
