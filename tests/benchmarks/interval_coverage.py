"""How often the intervals of AL and of the median hold the truth, over simulated runs of known processes.

    python tests/benchmarks/interval_coverage.py [--runs 2000] [--write]

A run of n steps is drawn from a process whose mean (or median) step time is known; its interval, as a record has it,
covers where it holds that value. The truth is the process's own, not that of the steps drawn: what a longer run of the
same kind would show. A trend has no such mean: there it is the mean of the trend over the n steps. Coverage is the
share of the runs that have an interval; the other runs are n/a.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.measured import Figure, options, seconds, write_content

from efficientbench.basics.errors import MetricsError
from efficientbench.devices.cpu import CPU
from efficientbench.metrics.formulas.statistics import SURE_STEPS, step_time_noise

LENGTHS = (10, 50, 100, 500)
LEAST_COVERAGE = 0.90
"""Of AL's 95 % interval where it is not called 'at least'."""
FEWEST = 20
"""Runs with an interval below which their coverage is undecided."""

Steps = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Process:
    """A kind of run."""

    name: str
    steps: Steps
    mean: float
    median: float


def autoregressive(correlation: float, chance: np.random.Generator, n: int) -> np.ndarray:
    """Return [n] stationary AR(1) around 100 with unit deviation: x(t) = correlation · x(t - 1) + e(t)."""
    steps = chance.standard_normal(n)
    steps[1:] *= math.sqrt(1 - correlation**2)
    for t in range(1, n):
        steps[t] += correlation * steps[t - 1]
    return 100 + steps


def slow_steps(chance: np.random.Generator, n: int) -> np.ndarray:
    """Return [n] steps with 2 % of noise, of which 2 in 100 take five times as long."""
    return _noise(chance, n) * np.where(chance.random(n) < 0.02, 5, 1)


def drifting(chance: np.random.Generator, n: int) -> np.ndarray:
    """Return [n] steps with 2 % of noise that become 5 % longer over the run."""
    return _noise(chance, n) * np.linspace(1, 1.05, n)


def two_clocks(chance: np.random.Generator, n: int) -> np.ndarray:
    """Return [n] steps with 2 % of noise, 60 by 60 at one of two clocks 10 % apart, from anywhere in such a period."""
    return _noise(chance, n) * np.where((np.arange(n) + chance.integers(120)) // 60 % 2, 1.1, 1.0)


def changing_clocks(chance: np.random.Generator, n: int) -> np.ndarray:
    """Return [n] steps as of `two_clocks`, which change after any step with a chance of one in 60."""
    changes = np.cumsum(chance.random(n) < 1 / 60) + chance.integers(2)
    return _noise(chance, n) * np.where(changes % 2, 1.1, 1.0)


def _noise(chance: np.random.Generator, n: int) -> np.ndarray:
    return 1 + 0.02 * chance.standard_normal(n)


PROCESSES = (
    Process("independent, normal", functools.partial(autoregressive, 0.0), 100, 100),
    Process("AR(1), 0.5", functools.partial(autoregressive, 0.5), 100, 100),
    Process("AR(1), 0.9", functools.partial(autoregressive, 0.9), 100, 100),
    Process("AR(1), 0.97", functools.partial(autoregressive, 0.97), 100, 100),
    Process("independent, Student's t with 3 degrees", lambda chance, n: 100 + chance.standard_t(3, n), 100, 100),
    Process("independent, log-normal, σ = 1", lambda chance, n: chance.lognormal(0, 1, n), math.exp(0.5), 1),
    # The middle of the steps is the 0.5 / 0.98 quantile of the plain ones.
    Process("2 % of steps five times as long", slow_steps, 1.08, NormalDist(1, 0.02).inv_cdf(0.5 / 0.98)),
    Process("a drift of 5 %", drifting, 1.025, 1.025),
    # Where the upper half of the one clock's steps ends and the lower half of the other's begins.
    Process("two clocks, 60 steps each", two_clocks, 1.05, 1 + 0.1 / 2.1),
    Process("two clocks, 60 steps each on average", changing_clocks, 1.05, 1 + 0.1 / 2.1),
)


@dataclass(frozen=True)
class Coverage:
    """What became of the intervals of many runs of one process and length."""

    runs: int
    intervals: int
    """Runs that have an interval."""
    mean: float
    """Share of the intervals of AL that hold the process's mean; 0 without an interval."""
    median: float
    """The same of the median."""
    is_least: bool
    """Whether reports say that such an interval is at least so wide."""

    def __str__(self) -> str:
        """Return 'AL / median', after ≥ where reports say 'at least'; in brackets the share of runs that have them."""
        if self.intervals < FEWEST:
            return "n/a"
        some = self.intervals / self.runs
        share = f" ({100 * some:.0f} %)" if some < 0.995 else ""
        return f"{'≥ ' if self.is_least else ''}{self.mean:.2f} / {self.median:.2f}{share}"

    @property
    def holds(self) -> bool:
        """Whether the intervals of AL keep their word."""
        return self.is_least or self.intervals < FEWEST or self.mean >= LEAST_COVERAGE


def coverage(process: Process, n: int, runs: int) -> Coverage:
    """Simulate runs of `n` steps and count whose intervals hold the truth."""
    chance = np.random.default_rng([n, *process.name.encode()])
    held = []
    for _ in range(runs):
        try:
            noise = step_time_noise(process.steps(chance, n))
        except MetricsError:
            continue
        held.append(
            [
                low <= truth <= high
                for (low, high), truth in ((noise.mean, process.mean), (noise.median, process.median))
            ]
        )
    mean, median = np.mean(held, axis=0) if held else (0.0, 0.0)
    return Coverage(runs, len(held), float(mean), float(median), n < SURE_STEPS)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs of each process and length")
    arguments = parser.parse_args()
    rows, broken = [], []
    for process in PROCESSES:
        found = {n: coverage(process, n, arguments.runs) for n in LENGTHS}
        rows.append({"process": process.name} | {f"{n} steps": str(each) for n, each in found.items()})
        broken += [f"{process.name}, {n} steps: {each}" for n, each in found.items() if not each.holds]
        print(*rows[-1].values(), sep="  ", flush=True)
    steps = autoregressive(0.7, np.random.default_rng(0), 10_000)
    time_s = Figure("time for the intervals of 10,000 steps", seconds(lambda: step_time_noise(steps)), "s")
    print(time_s)
    if broken:
        raise SystemExit(f"below {LEAST_COVERAGE}: {'; '.join(broken)}")
    if arguments.write:
        conditions = f"{arguments.runs:,} simulated runs of each process and length; {time_s}"
        write_content(__file__, CPU(), {"conditions": conditions, "rows": rows})


if __name__ == "__main__":
    main()
