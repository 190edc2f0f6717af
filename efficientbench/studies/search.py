"""The search of learning rates: what has been found, which rates are to be tried next, and what follows from them.

It follows from the records on disk: a search resumes by itself, and several machines try the same rates. The slope is
kept once cells are trained: a variant that is added, or whose search succeeds later, changes no other's rates.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.config.matrix import load_matrix
from efficientbench.launchers.processes.failure import Failure, read_failure
from efficientbench.metrics.files import write_whole
from efficientbench.studies.cells import LadderPlan
from efficientbench.studies.rates import SLOPE, carried, first_rates, further_rate, rate_at, vertex
from efficientbench.studies.suite import Search
from efficientbench.studies.tasks import StudyTask, record_of
from efficientbench.sweep.queue import Queue

KEPT = Path("sweep", "slope.json")
"""The slope of a study's rates, below its folder."""


@dataclass
class Searched:
    """What a study knows of its rates."""

    losses: dict[tuple[str, str], dict[float, float]] = field(default_factory=dict)
    """(variant, size) → rate → loss in nats, infinite where the run diverged."""
    done: list[StudyTask] = field(default_factory=list)
    """The runs with a final loss."""
    open: list[StudyTask] = field(default_factory=list)
    """The runs that are to be trained next."""
    failed: list[StudyTask] = field(default_factory=list)
    """Those that failed, by other reasons than the rate."""
    without: dict[str, str] = field(default_factory=dict)
    """Variant → why it has no rates yet, or will have none."""
    rates: dict[tuple[str, str], float] = field(default_factory=dict)
    """(variant, size) → the rate of its cells; without the variants of `without`."""
    slope: float | None = None
    """gamma; None for fixed rates, or while no variant has any."""


def search(plan: LadderPlan) -> Searched:
    """Return what the records of a study's searches say."""
    section, found = plan.section, Searched()
    if not isinstance(section.learning_rate, Search):
        found.rates = {(name, size): rate for name, of in section.learning_rate.items() for size, rate in of.items()}
        return found
    sizes = {cell.size: cell.parameters for cell in plan.cells.values()}
    at = sorted(section.search_sizes, key=sizes.__getitem__)
    vertices: dict[str, dict[str, float]] = {}
    for variant in section.ordered:
        start, of_variant = _start(plan, variant, at[0], section.learning_rate.start), {}
        for size in at:
            rate = _searched(plan, variant, size, start, found)
            if rate is None:
                break
            of_variant[size] = rate
            start = _digits(rate * (sizes[at[-1]] / sizes[size]) ** SLOPE)
        else:
            vertices[variant] = of_variant
    if vertices:
        by_parameters = {name: {sizes[size]: rate for size, rate in of.items()} for name, of in vertices.items()}
        found.slope, centers = carried(by_parameters, _kept_slope(plan.suite))
        for variant, of_variant in vertices.items():
            found.rates |= {
                (variant, size): _digits(of_variant.get(size) or rate_at(found.slope, centers[variant], parameters))
                for size, parameters in sizes.items()
            }
    return found


def keep_slope(suite: Path, slope: float | None) -> None:
    """Write the slope with which the first cells are trained. Raises MetricsError: it cannot be written."""
    if slope is not None and _kept_slope(suite) is None:
        write_whole(suite / KEPT, json.dumps({"slope": slope}) + "\n")


def _kept_slope(suite: Path) -> float | None:
    try:
        return float(parse_json(read_whole(suite / KEPT))["slope"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _start(plan: LadderPlan, variant: str, size: str, start: float) -> float:
    """Return the rate in the middle of the first search: the variant's own, where its matrix has one."""
    declared = load_matrix(plan.request.matrix).variants.get(variant, {}).get("training") or {}
    return plan.models[variant, size].config.training.learning_rate if "learning_rate" in declared else start


def _searched(plan: LadderPlan, variant: str, size: str, start: float, found: Searched) -> float | None:
    """Return the best rate of a variant at a size, and note its losses; None where runs are missing or failed."""
    losses, queue = found.losses.setdefault((variant, size), {}), Queue(plan.suite)
    rates = [_digits(rate) for rate in first_rates(start)]
    while True:
        for rate in rates:
            task = plan.search(variant, size, rate)
            loss = _loss(task, queue)
            if isinstance(loss, float):
                losses[rate] = loss
                found.done += [task] if math.isfinite(loss) else []
                continue
            if loss or variant not in found.without:
                unfinished = f"its learning rate is still searched: {task.id} is not trained yet"
                found.without[variant] = f"{task.id}: {loss.reason}" if loss else unfinished
            (found.failed if loss else found.open).append(task)
        if variant in found.without:
            return None
        try:
            further = further_rate(f"{variant}_{size}", losses)
        except MetricsError as error:
            found.without[variant] = str(error)
            return None
        if further is None:
            return vertex(losses)
        rates = [_digits(further)]


def _loss(task: StudyTask, queue: Queue) -> float | Failure | None:
    """Return a run's final loss, infinite where it diverged; else why it failed, or None where it was not trained."""
    record, _ = record_of(task)
    if record is not None and record.validation_loss is not None:
        return record.validation_loss
    state = queue.read(task.id)
    # What another configuration failed by, such as a wrong path, says nothing of this one.
    otherwise = state is not None and state.configuration != task.configuration
    failure = task.refused or (None if otherwise else read_failure(task.folder.failure))
    if failure is not None and failure.kind == "non_finite":
        return math.inf
    return failure if failure is not None and failure.kind != "stopped" else None


def _digits(rate: float) -> float:
    """Return a rate in four digits: as command lines have it."""
    return float(f"{rate:.3e}")
