"""Tabulate the parts of the wall time and the use of each rank; read and write the step shares of traced runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, ValidationError

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import plain_text, read_whole
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.formulas.device_use import RankUse
from efficientbench.metrics.records.record import FIGURES, RunRecord
from efficientbench.metrics.records.stored import read_each
from efficientbench.metrics.report.headline import with_names
from efficientbench.metrics.report.table import Table, number

PARTS = {
    "productive_s": "goodput",
    "start_s": "start",
    "first_steps_s": "first steps",
    "data_wait_s": "data",
    "evaluation_s": "evaluation",
    "checkpoints_s": "checkpoints",
    "restarts_s": "restarts",
    "rest_s": "rest",
}
"""Figure of a part of the wall time → the part's column."""


def wall_time_table(records: Sequence[RunRecord]) -> Table:
    """Return the wall time of each run that has it, and the shares of its parts."""
    rows = [
        (name, f"{record.wall_s:,.0f}", *(f"{getattr(record, part) / record.wall_s:.1%}" for part in PARTS))
        for name, record in with_names(records)
        if record.wall_s and None not in [getattr(record, part) for part in PARTS]
    ]
    notes = tuple(f"{title}: {FIGURES[part].description}." for part, title in PARTS.items())
    return Table(("run", "wall time, s", *PARTS.values()), rows, notes=notes)


NAME = "step_shares.json"
FOLDER = "profile"
"""Folder below a run's that holds the traced run."""


class StepShares(BaseModel):
    """The time of the traced steps."""

    model_config = ConfigDict(allow_inf_nan=False)
    steps: int = Field(ge=1)
    step_time_s: PositiveFloat
    """Mean time of the traced steps, which tracing makes longer."""
    seconds: dict[str, NonNegativeFloat]
    """Kind of work → its seconds in a step."""
    on_device: bool
    """Whether the times are those of an accelerator's kernels; else of the training thread's operations."""


@dataclass(frozen=True)
class Profiled:
    """The step shares of one traced run."""

    run: str
    """The run's folder, relative to the reported folder."""
    shares: StepShares


def write_step_shares(shares: StepShares, folder: Path) -> None:
    """Write the shares into the folder of a traced run. Raises MetricsError if the file cannot be written."""
    write_whole(folder / NAME, shares.model_dump_json(indent=2) + "\n")


def load_step_shares(folder: Path) -> tuple[list[Profiled], list[str]]:
    """Return the shares of the traced runs below a folder, and a message for each file that cannot be read."""
    paths = [
        each for each in sorted(folder.rglob(f"{FOLDER}/{NAME}")) if "previous" not in each.relative_to(folder).parts
    ]
    return read_each(paths, lambda path: _read(path, folder))


def _read(path: Path, folder: Path) -> Profiled:
    try:
        shares = StepShares.model_validate_json(read_whole(path))
    except (OSError, ValidationError) as error:
        problem = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
        raise MetricsError(f"{path}: cannot be read ({problem})") from None
    run = path.parent.parent
    return Profiled(plain_text(folder.name if run == folder else str(run.relative_to(folder))), shares)


MOST_RANKS = 8
"""Most rows of a run: those of the ranks that worked longest."""
NOTES = (
    "Step: mean by the rank's own clock. Own work: step less waits for other ranks, so that the first row of a run is "
    f"its slowest rank; at most {MOST_RANKS} rows a run. Stages of a pipeline have unequal work.",
    "Memory, busy share and energy are those of a rank's own accelerator; n/a on a host, which ranks share. Of repeats "
    "the ranks are those of the first one.",
)


def rank_table(records: Sequence[RunRecord]) -> Table:
    """Return the ranks of each run of several ranks, the one that worked longest first."""
    rows = [(name, *cells) for name, record in with_names(records) for cells in _ranks(record)[:MOST_RANKS]]
    header = ("run", "rank", "step, s", "waits, s", "own work, s", "memory, GB", "peak, GB", "busy", "energy, J")
    return Table(header, rows, notes=NOTES)


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
