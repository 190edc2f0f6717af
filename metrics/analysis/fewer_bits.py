"""Models with weights of fewer bits beside the same models in full width: what became of their quality and cost.

Quality is paired by item. The cost has a verdict where both widths were measured three times or more, as that of two
models has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from efficientbench.basics.errors import MetricsError, nearest
from efficientbench.basics.foreign import plain_text
from efficientbench.metrics.analysis.generation import Combination, Compared, combination_of, compare_widths
from efficientbench.metrics.analysis.paired import CENTRED, Evaluations, Paired, pair_each
from efficientbench.metrics.analysis.paired import FOLDER as EVALUATION
from efficientbench.metrics.formulas.definitions import model_compression_rate
from efficientbench.metrics.formulas.ratio import Ratio
from efficientbench.metrics.records.figure import average
from efficientbench.metrics.records.generation.generation import (
    GENERATION_NAME,
    GenerationRecord,
    GenerationRow,
    generation_of,
)
from efficientbench.metrics.records.stored import SKIPPED_FOLDERS

FOLDER = "quantized"
"""Folder below a run's that holds what was measured of each width, in a folder of its name."""
FULL = "none"
"""Name of the full width."""


def width_folder(run: Path, name: str) -> Path:
    """Return the folder of what was evaluated of a run, or of one repeat, with weights of a width."""
    return run if name == FULL else run / FOLDER / name


def check_width(run: Path, name: str) -> None:
    """Raise MetricsError where neither a run nor its repeats have a folder of a width; the message has the nearest."""
    if name == FULL:
        return
    there = [FULL, *dict.fromkeys(path.name for path in _width_folders(run))]
    if name not in there:
        near = nearest(name, there)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(there)}"
        raise MetricsError(f"--weights: nothing of {run} was measured or evaluated with {name[:80]!r}: {hint}")


@dataclass(frozen=True)
class Quality:
    """What rounding changed of one checkpoint."""

    run: str
    """The run's folder, relative to the reported one."""
    width: str
    evaluations: Evaluations
    """A is the full width, B this one; p values are corrected for all widths of the run."""
    disk_bytes: tuple[int, int] | None
    """Bytes on disk in full width and in this one; None: they were not counted."""

    def compression(self, paired: Paired) -> float | None:
        """Return MCR by one figure; None where a size is not known, or the quality is not above 0."""
        share = kept(paired)
        return None if share is None or self.disk_bytes is None else model_compression_rate(*self.disk_bytes, share)


def kept(paired: Paired) -> float | None:
    """Return the share of its quality that a figure keeps; None where there was none.

    Of scores it is after over before; of losses, which less is better of, before over after.
    """
    is_score = paired.unit in ("right", CENTRED)
    after, before = (paired.second, paired.first) if is_score else (paired.first, paired.second)
    return after / before if before > 0 else None


@dataclass(frozen=True)
class Cost:
    """What generation takes with one model's weights in several widths, over its repeats."""

    run: str
    """The folder of the run, or of all its repeats, relative to the reported one."""
    made: dict[str, list[GenerationRecord]]
    """Width → its records; the full width is the first, where it was measured."""
    compared: dict[str, dict[Combination, Compared]]
    """Width → its ratios over the full width, at each combination that was measured of both."""
    missing: dict[str, str]
    """Width → why it is not compared."""

    def rows(self, width: str) -> dict[Combination, list[GenerationRow]]:
        """Return the rows of a width's records by their combination, without failed ones."""
        found: dict[Combination, list[GenerationRow]] = {}
        for row in (row for record in self.made[width] for row in record.rows if row.failure is None):
            found.setdefault(combination_of(row), []).append(row)
        return found

    def ratio(self, width: str, combination: Combination, metric: str) -> Ratio | None:
        """Return a figure's ratio over the full width; None where there is none."""
        compared = self.compared.get(width, {}).get(combination)
        return next((each for each in compared.ratios if each.metric == metric), None) if compared else None


@dataclass(frozen=True)
class Widths:
    """All that was measured and evaluated with weights of fewer bits below a folder."""

    qualities: Sequence[Quality] = ()
    costs: Sequence[Cost] = ()
    unread: list[str] = field(default_factory=list)
    """A message for each run whose evaluations cannot be read."""


def load_widths(folder: Path) -> Widths:
    """Return what lies below a folder; records that cannot be read are those of other parts of a report."""
    runs: dict[Path, list[Path]] = {}
    for path in _width_folders(folder):
        runs.setdefault(path.parent.parent, []).append(path)
    qualities: list[Quality] = []
    unread: list[str] = []
    for run, widths in runs.items():
        try:
            pairs = pair_each((run, width) for width in widths)
        except MetricsError as error:
            unread.append(plain_text(str(error)))
            continue
        for width, found in zip(widths, pairs, strict=True):
            if found.paired or found.notes:
                qualities.append(Quality(_named(run, folder), width.name, found, _sizes(run, width)))
    bases: dict[Path, list[Path]] = {}
    for run in runs:
        bases.setdefault(run.parent if run.name.startswith("seed_") else run, []).append(run)
    costs = [_cost(_named(base, folder), repeats, runs) for base, repeats in bases.items()]
    return Widths(qualities, [cost for cost in costs if set(cost.made) - {FULL}], unread)


def _width_folders(folder: Path) -> list[Path]:
    """Return the folders of widths below a folder that hold results; skip those of replaced and traced runs."""
    found = sorted(path for path in folder.rglob(f"{FOLDER}/*") if path.is_dir())
    return [
        path
        for path in found
        if not set(SKIPPED_FOLDERS) & set(path.relative_to(folder).parts)
        and ((path / GENERATION_NAME).is_file() or (path / EVALUATION).is_dir())
    ]


def _named(path: Path, folder: Path) -> str:
    return plain_text(str(path.relative_to(folder)))


def _sizes(run: Path, width: Path) -> tuple[int, int] | None:
    before, after = generation_of(run), generation_of(width)
    if before is None or after is None or before.disk_bytes is None or after.disk_bytes is None:
        return None
    return before.disk_bytes, after.disk_bytes


def _cost(name: str, repeats: Sequence[Path], runs: dict[Path, list[Path]]) -> Cost:
    """Return the costs of a run's widths, each over the run's repeats."""
    folders: dict[str, list[Path]] = {FULL: list(repeats)}
    for run in repeats:
        for path in runs[run]:
            folders.setdefault(path.name, []).append(path)
    made = {width: [each for each in map(generation_of, paths) if each] for width, paths in folders.items()}
    made = {width: records for width, records in made.items() if records}
    compared, missing = {}, {}
    for width, records in made.items():
        if width == FULL:
            continue
        try:
            found = compare_widths(made.get(FULL, []), records)
            compared[width] = {each.combination: each for each in found}
        except MetricsError as error:
            missing[width] = str(error)
    return Cost(name, made, compared, missing)


def mean_of(rows: Sequence[GenerationRow], name: str) -> float | None:
    """Return a figure's mean over the repeats' rows; None where one of them lacks it."""
    values = [row.value(name) for row in rows]
    return None if None in values else average(values)
