"""Models with weights of fewer bits beside the same models in full width: what became of their quality and cost.

Quality is paired by item. The cost has a verdict where both widths were measured three times or more, as that of two
models has.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from efficientbench.basics.errors import MetricsError, did_you_mean
from efficientbench.basics.foreign import plain_text
from efficientbench.basics.grouped import grouped
from efficientbench.metrics.analysis.generation import Combination, Compared, compare_widths
from efficientbench.metrics.analysis.paired import CENTRED, Evaluations, Paired, pair_each
from efficientbench.metrics.analysis.paired import FOLDER as EVALUATION
from efficientbench.metrics.formulas.definitions import model_compression_rate
from efficientbench.metrics.formulas.ratio import Ratio
from efficientbench.metrics.records.generation.generation import GENERATION_NAME, GenerationRecord, generation_of
from efficientbench.metrics.records.stored import current_files

FOLDER = "quantized"
"""Folder below a run's that holds what was measured of each width, in a folder of its name."""
FULL = "none"
"""Name of the full width."""


def width_folder(run: Path, name: str) -> Path:
    """Return the folder of what was evaluated of a run, or of one repeat, with weights of a width.

    Raises MetricsError: neither the run nor its repeats have one; the message has the nearest.
    """
    if name == FULL:
        return run
    there = [FULL, *dict.fromkeys(path.name for path in _width_folders(run))]
    if name not in there:
        hint = did_you_mean(name, there, f"there are {', '.join(there)}")
        raise MetricsError(f"--weights: nothing of {run} was measured or evaluated with {name[:80]!r}: {hint}")
    return run / FOLDER / name


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
    """What generation takes with one model's weights in one width, over its repeats."""

    run: str
    """The folder of the run, or of all its repeats, relative to the reported one."""
    width: str
    made: Sequence[GenerationRecord]
    compared: dict[Combination, Compared]
    """Its ratios over the full width, at each combination that was measured of both; none of the full width itself."""
    missing: str = ""
    """Why it is not compared."""

    def ratio(self, combination: Combination, metric: str) -> Ratio | None:
        """Return a figure's ratio over the full width; None where there is none."""
        compared = self.compared.get(combination)
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
    runs = grouped((path.parent.parent, path) for path in _width_folders(folder))
    qualities: list[Quality] = []
    unread: list[str] = []
    bases: dict[Path, list[Path]] = {}
    for run, widths in runs.items():
        is_repeat = run != folder and re.fullmatch(r"seed_\d+", run.name)
        bases.setdefault(run.parent if is_repeat else run, []).extend([run, *widths])
        try:
            pairs = pair_each((run, width) for width in widths)
        except MetricsError as error:
            unread.append(plain_text(str(error)))
            continue
        for width, found in zip(widths, pairs, strict=True):
            if found.paired or found.notes:
                qualities.append(Quality(_named(run, folder), width.name, found, _sizes(run, width)))
    costs = [cost for base, places in bases.items() for cost in _costs(_named(base, folder), places, runs)]
    return Widths(qualities, costs, unread)


def _width_folders(folder: Path) -> list[Path]:
    """Return the folders of widths below a folder that hold results; skip those of replaced and traced runs."""
    return [
        path
        for path in current_files(folder, f"{FOLDER}/*")
        if (path / GENERATION_NAME).is_file() or (path / EVALUATION).is_dir()
    ]


def _named(path: Path, folder: Path) -> str:
    return plain_text(str(path.relative_to(folder)))


def _sizes(run: Path, width: Path) -> tuple[int, int] | None:
    before, after = (None if each is None else each.disk_bytes for each in map(generation_of, (run, width)))
    return None if before is None or after is None else (before, after)


def _costs(name: str, places: Sequence[Path], runs: Collection[Path]) -> list[Cost]:
    """Return the cost of each width over the repeats, of which `places` has the folders of all widths."""
    made: dict[str, list[GenerationRecord]] = {FULL: []}
    for path in places:
        if (record := generation_of(path)) is not None:
            made.setdefault(FULL if path in runs else path.name, []).append(record)
    costs = [Cost(name, FULL, made.pop(FULL), {})]
    for width, records in made.items():
        try:
            compared = {each.combination: each for each in compare_widths(costs[0].made, records)}
            costs.append(Cost(name, width, records, compared))
        except MetricsError as error:
            costs.append(Cost(name, width, records, {}, str(error)))
    return [cost for cost in costs if cost.made] if made else []
