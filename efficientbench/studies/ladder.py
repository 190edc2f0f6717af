"""The losses of a ladder: several variants, trained in the same cells with the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

LEAST_SIZES = 3
"""Sizes without which the trend of a difference cannot be told."""
LEAST_BUDGETS = 2
"""Budgets that a variant needs at each of these sizes."""


@dataclass(frozen=True)
class Cell:
    """A size and a number of tokens, both of the baseline: every variant is trained in the same cells."""

    size: str
    parameters: float
    """N: training FLOPs per token over 6."""
    tokens: float
    """D."""


@dataclass(frozen=True)
class Result:
    """The final validation loss of one run."""

    variant: str
    cell: Cell
    seed: int
    loss: float
    """In nats a token."""


@dataclass(frozen=True)
class Ladder:
    """What the runs of a study lost."""

    variants: tuple[str, ...]
    """The baseline first."""
    cells: tuple[Cell, ...]
    losses: np.ndarray
    """[variants, cells, seeds] in nats a token; NaN where a run is missing."""
    trunks: bool = True
    """Whether the cells of one size, variant and seed are branches of one trunk."""

    @classmethod
    def of(cls, results: Sequence[Result], variants: Sequence[str], trunks: bool = True) -> Ladder:
        """Return the ladder of some runs, cells by parameters and tokens, seeds ascending."""
        cells = sorted({each.cell for each in results}, key=lambda cell: (cell.parameters, cell.tokens))
        seeds = sorted({each.seed for each in results})
        losses = np.full((len(variants), len(cells), len(seeds)), np.nan)
        for each in results:
            losses[variants.index(each.variant), cells.index(each.cell), seeds.index(each.seed)] = each.loss
        return cls(tuple(variants), tuple(cells), losses, trunks)

    @classmethod
    def planned(cls, variants: Sequence[str], cells: Sequence[Cell], seeds: int, trunks: bool) -> Ladder:
        """Return the ladder of a plan, whose losses are 0."""
        return cls(tuple(variants), tuple(cells), np.zeros((len(variants), len(cells), seeds)), trunks)

    @cached_property
    def parameters(self) -> np.ndarray:
        """[cells]: N."""
        return np.array([cell.parameters for cell in self.cells])

    @cached_property
    def tokens(self) -> np.ndarray:
        """[cells]: D."""
        return np.array([cell.tokens for cell in self.cells])

    @property
    def sizes(self) -> tuple[str, ...]:
        """The sizes, in the order of the cells."""
        return tuple(dict.fromkeys(cell.size for cell in self.cells))

    @cached_property
    def size_of(self) -> np.ndarray:
        """[cells]: each cell's index in `sizes`."""
        return np.array([self.sizes.index(cell.size) for cell in self.cells])

    @property
    def present(self) -> np.ndarray:
        """[cells, seeds]: whether all variants were trained there. Only such runs show a difference."""
        return ~np.isnan(self.losses).any(axis=0)

    def lacking(self, variant: str) -> str | None:
        """Return why a variant has no place in the verdict; None where it has one."""
        trained = ~np.isnan(self.losses[self.variants.index(variant)]).all(axis=-1)
        budgets = [int(trained[self.size_of == size].sum()) for size in range(len(self.sizes))]
        enough = [size for size, count in zip(self.sizes, budgets, strict=True) if count >= LEAST_BUDGETS]
        if len(enough) >= LEAST_SIZES:
            return None
        left = f"{len(enough)} sizes have {LEAST_BUDGETS} budgets or more"
        return f"{left} ({', '.join(enough) or 'none'}), and a ladder needs {LEAST_SIZES}"

    def part(self, variants: Sequence[str] | None = None, cells: np.ndarray | None = None) -> Ladder:
        """Return the ladder of some variants (all by default) and some cells ([cells] of bool; all by default)."""
        names = self.variants if variants is None else tuple(variants)
        rows = [self.variants.index(name) for name in names]
        kept = np.ones(len(self.cells), bool) if cells is None else cells
        taken = tuple(cell for cell, is_kept in zip(self.cells, kept, strict=True) if is_kept)
        return Ladder(names, taken, self.losses[rows][:, kept], self.trunks)
