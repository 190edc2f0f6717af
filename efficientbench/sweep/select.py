"""Which runs of a matrix a sweep takes."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.config.errors import ConfigError, nearest
from efficientbench.config.matrix import Matrix, RunName


def select(matrix: Matrix, only: Sequence[str] = (), sizes: Sequence[str] = ()) -> list[RunName]:
    """The runs that any name of `only` and any of `sizes` means, in the order of the matrix; empty takes all.

    A name is that of a run, a variant or a suite; else the beginning of a suite's, as `attention` of
    `attention_variants`. Raises ConfigError for a name that means nothing, and where nothing is left.
    """
    problems = [problem for name in only if (problem := _unknown(name, matrix))]
    for size in sizes:
        if size not in matrix.sizes:
            near = nearest(size, matrix.sizes)
            hint = f"did you mean {near}?" if near else f"the sizes are {', '.join(matrix.sizes)}"
            problems.append(f"--sizes: there is no size called {size[:80]!r}: {hint}")
    if problems:
        raise ConfigError(problems)
    chosen = [run for run in matrix.runs if not only or any(run in _meant(name, matrix) for name in only)]
    left = [run for run in chosen if not sizes or run.size in sizes]
    if not left:
        there = ", ".join(dict.fromkeys(run.size for run in chosen))
        raise ConfigError(f"--sizes: no chosen run has the size {' or '.join(sizes)}; theirs are {there}")
    return left


def _meant(name: str, matrix: Matrix) -> list[RunName]:
    exact = [run for run in matrix.runs if name in (run.name, run.variant, run.suite)]
    return exact or [run for run in matrix.runs if name and run.suite.startswith(f"{name}_")]


def _unknown(name: str, matrix: Matrix) -> str | None:
    if _meant(name, matrix):
        return None
    names = [each for run in matrix.runs for each in (run.name, run.variant, run.suite, run.suite.partition("_")[0])]
    near = nearest(name, names)
    known = ", ".join(dict.fromkeys(run.suite for run in matrix.runs))
    hint = f"did you mean {near}?" if near else f"name a run, a variant, or one of the suites {known}"
    return f"--only: no run, variant or suite is called {name[:80]!r}: {hint}"
