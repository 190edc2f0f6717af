"""What would help a study that names no best variant: more seeds, one size more, or a smaller target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from efficientbench.basics.grouped import grouped
from efficientbench.studies.effects import Effects, Prior
from efficientbench.studies.ladder import Cell, Ladder
from efficientbench.studies.runs import StudyRun
from efficientbench.studies.simulate import NAMED, POWER, Extension, shares_best

SEED_FACTORS = (2, 4)
SIZE_FACTOR = 2
TRUNK_SHARE = 0.8
"""Share of a branch's tokens that its trunk trains."""


@dataclass(frozen=True)
class Extra:
    """Further runs, and how likely they are to end with a name."""

    what: str
    device_hours: float | None
    """Of the further runs, at the measured speed of the largest size; None where no record has a speed."""
    chance: float


@dataclass(frozen=True)
class SmallerTarget:
    """A target nearer to the ladder, at which these runs name a variant already."""

    target: Cell
    named: str
    probability: float


@dataclass(frozen=True)
class Further:
    """What would help."""

    extras: tuple[Extra, ...]
    smaller: SmallerTarget | None
    """The largest target, halved until it reaches the ladder, at which a variant is named; None where none is."""

    @property
    def advised(self) -> Extra | None:
        """The cheapest of those that end with a name in POWER of the cases; None: there is none."""
        enough = [each for each in self.extras if each.chance >= POWER]
        return min(enough, key=lambda each: (each.device_hours is None, each.device_hours or 0.0), default=None)


def what_would_help(ladder: Ladder, effects: Effects, prior: Prior, target: Cell, runs: Iterable[StudyRun]) -> Further:
    """Return the chances of runs beyond those of a ladder, by the fit that was made of it.

    `target`: what the study is to decide. `runs`: the complete ones, for the device-hours of further ones.
    """
    hours, seeds = _hours_per_token(runs), ladder.losses.shape[2]
    extras = []
    for factor in SEED_FACTORS:
        larger = Ladder.planned(ladder.variants, ladder.cells, seeds * factor, ladder.trunks)
        further = _device_hours(ladder, ladder.cells, hours, (factor - 1) * seeds)
        extras.append(Extra(f"{factor} times the seeds", further, _chance(ladder, larger, prior, target)))
    size = _one_size_more(ladder)
    if size[0].parameters < target.parameters:
        larger = Ladder.planned(ladder.variants, (*ladder.cells, *size), seeds, ladder.trunks)
        further = _device_hours(ladder, size, hours, seeds)
        extras.append(Extra(f"one size more, {size[0].size}", further, _chance(ladder, larger, prior, target)))
    return Further(tuple(extras), _smaller_target(ladder, effects, target))


def _chance(ladder: Ladder, extended: Ladder, prior: Prior, target: Cell) -> float:
    return Extension(ladder, extended, prior).chance(ladder.losses, (target.parameters, target.tokens))


def _one_size_more(ladder: Ladder) -> tuple[Cell, ...]:
    """Return the cells of a size SIZE_FACTOR times the largest, with as many tokens for each parameter."""
    largest = ladder.sizes[-1]
    name = f"{SIZE_FACTOR} × {largest}"
    return tuple(
        Cell(name, cell.parameters * SIZE_FACTOR, cell.tokens * SIZE_FACTOR)
        for cell in ladder.cells
        if cell.size == largest
    )


def _smaller_target(ladder: Ladder, effects: Effects, target: Cell) -> SmallerTarget | None:
    part = 0.5
    while target.parameters * part > ladder.parameters.max():
        parameters, tokens = target.parameters * part, target.tokens * part
        shares = shares_best(effects.at(parameters, tokens))
        if shares.max() >= NAMED:
            named = effects.variants[int(shares.argmax())]
            return SmallerTarget(Cell(f"{part:g} × {target.size}", parameters, tokens), named, float(shares.max()))
        part /= 2
    return None


def _hours_per_token(runs: Iterable[StudyRun]) -> dict[str, tuple[float, float]]:
    """Return variant → N of its largest size with a measured speed, and the device-hours of a token at its mean."""
    found: dict[str, dict[float, list[float]]] = {}
    for run in runs:
        if run.record is not None and run.record.tokens_per_s:
            per_hour = run.record.tokens_per_s * 3600 / run.record.devices
            found.setdefault(run.variant, {}).setdefault(run.cell.parameters, []).append(per_hour)
    return {variant: (max(sizes), 1 / fmean(sizes[max(sizes)])) for variant, sizes in found.items()}


def _device_hours(
    ladder: Ladder, cells: tuple[Cell, ...], hours: dict[str, tuple[float, float]], seeds: int
) -> float | None:
    """Return the device-hours of some cells with so many seeds, of all variants."""
    if any(variant not in hours for variant in ladder.variants):
        return None
    budgets = grouped((cell.parameters, cell.tokens) for cell in cells)
    total = 0.0
    for parameters, tokens in budgets.items():
        trained = TRUNK_SHARE * max(tokens) + (1 - TRUNK_SHARE) * sum(tokens) if ladder.trunks else sum(tokens)
        total += sum(trained * of_token * parameters / size for size, of_token in (hours[v] for v in ladder.variants))
    return total * seeds
