"""Tabulate the use of each rank: which is the slowest, and which has most memory and energy."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.metrics.device_use import RankUse
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import unique_names
from efficientbench.metrics.report.table import Table, number

MOST_RANKS = 8
"""Rows of a run: those of its ranks that worked longest."""
NOTES = (
    "Step: mean by the rank's own clock. Own work: step less waits for other ranks, so that the first row of a run is "
    f"its slowest rank; at most {MOST_RANKS} rows a run. Stages of a pipeline have unequal work.",
    "Memory, busy share and energy are those of a rank's own accelerator; n/a on a host, which ranks share. Of repeats "
    "the ranks are those of the first one.",
)


def rank_table(records: Sequence[RunRecord]) -> Table | None:
    """Return the ranks of each run of several, the one that worked longest first; None where no run knows them."""
    rows = [
        (name, *cells)
        for name, record in zip(unique_names(records), records, strict=True)
        for cells in _ranks(record)[:MOST_RANKS]
    ]
    if not rows:
        return None
    header = ("run", "rank", "step, s", "waits, s", "own work, s", "memory, GB", "peak, GB", "busy", "energy, J")
    return Table(header, rows, title="Ranks", notes=NOTES)


def _ranks(record: RunRecord) -> list[tuple[str, ...]]:
    waited_s = {each.rank: each.communication_s + (each.pipeline_s or 0.0) for each in record.rank_waits}

    def own_s(use: RankUse) -> float | None:
        return use.step_time_s - waited_s[use.rank] if use.rank in waited_s else None

    # Sorting is stable: ranks whose waits are not known stay in their order.
    slowest = sorted(record.rank_uses, key=lambda use: -(own_s(use) or 0.0))
    return [
        (
            f"{use.rank:,}",
            number(use.step_time_s, ".4g"),
            number(waited_s.get(use.rank), ".4g"),
            number(own_s(use), ".4g"),
            number(use.amu_gb, ",.2f"),
            number(use.peak_memory_gb, ",.2f"),
            number(use.pcu, ".1%"),
            number(use.energy_j, ",.1f"),
        )
        for use in slowest
    ]
