"""Studies whose losses are simulated, as they are on disk: complete runs with records, and costs at the target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.metrics_parts import make_record
from support.simulated_studies import Truth, cells, simulate

from efficientbench.studies.ladder import Cell
from efficientbench.studies.runs import MatchLeft, Study, StudyRun, TargetCost
from efficientbench.studies.suite import StudySection

OF_TRUTH = {"mla": 0, "gqa": 1, "nsa": 2}
"""Variant → its place in a truth, in which the first leads."""
TARGET = Cell("1.5B", 1.5e9, 30e9)
TOKENS_PER_S = 1e5
BYTES_PER_TOKEN = 4.5
HOURS = 1000.0
"""Device-hours of each variant at the target."""


def section(**changed: Any) -> StudySection:
    """Return the section of a study of three variants."""
    given = {
        "variants": ["gqa", "mla", "nsa"],
        "baseline": "gqa",
        "sizes": ["50M", "125M", "350M"],
        "target": {"size": "1.5B", "tokens_per_parameter": 20},
        "learning_rate": {"at": ["50M", "125M"]},
    }
    return StudySection.model_validate(given | changed)


def study(truth: Truth, folder: Path = Path("out/study"), seed: int = 0, **changed: Any) -> Study:
    """Return a study of three variants whose runs are all complete; `changed`: keys of its section."""
    of = section(**changed)
    losses = simulate(truth, 1, of.seeds, seed).losses[0]
    runs = tuple(
        _run(folder, variant, cell, number, float(losses[OF_TRUTH[variant], at, number - 1]))
        for at, cell in enumerate(cells())
        for number in range(1, of.seeds + 1)
        for variant in of.variants
    )
    searches = {
        (variant, size): {1.5e-3: 5.91, 3e-3: 5.85, 6e-3: 5.97} for variant in of.variants for size in of.search_sizes
    }
    matching = {("mla", size): MatchLeft(1120, 1376, -0.001) for size in (*of.sizes, of.target.size)}
    costs = {
        variant: TargetCost(2.7e20, HOURS * 3600, "measured at 350M × FLOPs", True, None, "no record has energy", cache)
        for variant, cache in (("gqa", 1024), ("mla", 410), ("nsa", 1024))
    }
    slope = -0.24 if of.search_sizes else None
    return Study("mine.yaml", folder, of, TARGET, runs, searches, {}, slope, matching, costs, "Trace 9000")


def _run(folder: Path, variant: str, cell: Cell, seed: int, loss: float) -> StudyRun:
    where = folder / f"{variant}_{cell.size}__tokens={cell.tokens:g}" / f"seed={seed}"
    values = {
        **{"run": f"{variant}_{cell.size}", "variant": variant, "size": cell.size, "seed": seed},
        **{"validation_loss": loss, "validation_text": "a" * 64, "tokens_per_s": TOKENS_PER_S},
        "bits_per_byte": loss / math.log(2) / BYTES_PER_TOKEN,
    }
    return StudyRun(variant, cell, seed, where, "complete", 3e-3, make_record(values), None)


def without(of: Study, reasons: Mapping[tuple[str, str], str]) -> Study:
    """Return the study after all runs of some (variant, size) have failed, each for a reason."""
    runs = tuple(
        replace(run, state="failed", record=None, reason=reasons[run.variant, run.cell.size])
        if (run.variant, run.cell.size) in reasons
        else run
        for run in of.runs
    )
    return replace(of, runs=runs)
