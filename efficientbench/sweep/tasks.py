"""The runs of a sweep: every chosen name × every combination of the axes × every seed, each with its own folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from efficientbench.config.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.config.matrix import MATRIX, RunName, load_matrix
from efficientbench.config.schema import RunConfig
from efficientbench.launchers.processes.failure import Failure
from efficientbench.metrics.analysis.repeats import flat
from efficientbench.planning.plan import DoesNotFitError, Plan
from efficientbench.running.complete import PLACES
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.run import plan_on
from efficientbench.sweep.axes import combinations, label_of, parse_axes
from efficientbench.sweep.machine import Machine, Share, slots_needed
from efficientbench.sweep.select import select


@dataclass(frozen=True)
class Request:
    """What somebody asked a sweep for."""

    matrix: Path = MATRIX
    only: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    """As `key=value,value`."""
    overrides: tuple[str, ...] = ()
    """As `key=value`, for every run; not part of any name."""
    smoke: bool = False
    repeat: int | None = None
    retry_smaller: bool = False
    """Whether a run for which memory does not suffice is tried again with a smaller micro-batch."""


@dataclass(frozen=True)
class Task:
    """One run."""

    id: str
    """The name of its folder, with its seed where it is one of several repeats: a file name."""
    words: tuple[str, ...]
    """Of the command line that runs it, after `efficientbench`."""
    folder: OutputFolder
    config: RunConfig | None = None
    """As asked for; None where it is refused for what it says."""
    plan: Plan | None = None
    """On this machine; None where it is refused."""
    refused: Failure | None = None
    slots: int = 1
    asked: int | None = field(default=None, kw_only=True)
    """The micro-batch asked for, where a smaller one takes its place."""

    @property
    def configuration(self) -> str:
        """The same text for tasks that compute the same."""
        config = flat(self.config.model_dump(mode="json")) if self.config else {"words": self.words}
        content = {key: value for key, value in config.items() if key not in PLACES}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def ranks(self) -> int:
        return self.plan.layout.world_size if self.plan else 1

    @property
    def micro_batch_size(self) -> int:
        """Asked for, fitted to the devices."""
        if self.asked is not None:
            return self.asked
        config = self.plan.config if self.plan else self.config
        return config.training.micro_batch_size if config else 0


def build_tasks(request: Request, machine: Machine, jobs: int | None) -> list[Task]:
    """Every run of the sweep, planned on this machine; `jobs` is as of `slots_needed`.

    A combination that cannot run is refused with its reason, and the others stay. Raises ConfigError for what is wrong
    with the request itself, and where nothing that it names can run.
    """
    if request.repeat is not None and request.repeat < 1:
        raise ConfigError(f"--repeat: {request.repeat} runs are none; 1 or more")
    axes = parse_axes(request.axes)
    if request.repeat is not None and any(axis.key == "training.seed" for axis in axes):
        raise ConfigError("--set training.seed: --repeat gives each run its seeds; leave out one of the two")
    names = select(load_matrix(request.matrix), request.only, request.sizes)
    chosen = list(combinations(axes))
    tasks = [task for name in names for values in chosen for task in _tasks(request, name, values, machine, jobs)]
    # Two texts of one value (1e-3, 0.001) are one run.
    tasks = list({task.id: task for task in reversed(tasks)}.values())[::-1]
    if request.retry_smaller:
        tasks = [_fitting(task, machine) for task in tasks]
    reasons = [task.refused.reason for task in tasks if task.refused]
    if len(reasons) == len(tasks):
        raise ConfigError(list(dict.fromkeys(reasons)))
    return tasks


def _tasks(request: Request, name: RunName, values: dict[str, str], machine: Machine, jobs: int | None) -> list[Task]:
    given = (*request.overrides, *(f"{key}={value}" for key, value in values.items()))
    refused = None
    try:
        config = resolve(name.name, request.smoke, given, request.matrix)
    except ConfigError as error:
        # Enough of it for the folder in which its reason is told.
        places = [override for override in request.overrides if override.startswith(("output=", "label="))]
        config = resolve(name.name, request.smoke, places, request.matrix)
        refused = Failure("mistake", str(error))
    label = label_of(values, None if refused else config, config.label)
    config = config.model_copy(update={"label": label})
    words = ["run", name.name, *(["--smoke"] if request.smoke else []), *given]
    if request.matrix != MATRIX:
        words[2:2] = ["--matrix", str(request.matrix)]
    if label is not None:
        words.append(f"label={label}")
    if request.repeat is None:
        return [_planned(Task(config.name, tuple(words), OutputFolder.of(config), config), refused, machine, jobs)]
    tasks = []
    for seed in range(config.training.seed, config.training.seed + request.repeat):
        seeded = config.model_copy(update={"training": config.training.model_copy(update={"seed": seed})})
        own = (*words, "--repeat", "1", f"training.seed={seed}")
        task = Task(f"{config.name}__seed_{seed}", own, OutputFolder.of_repeat(seeded), seeded)
        tasks.append(_planned(task, refused, machine, jobs))
    return tasks


def _planned(task: Task, refused: Failure | None, machine: Machine, jobs: int | None) -> Task:
    """The task with its plan and the slots that it takes, or with the reason why it cannot run here."""
    if refused is not None or task.config is None:
        return replace(task, config=None, refused=refused)
    needed = slots_needed(machine, jobs, _named_ranks(task.config))
    try:
        plan = plan_on(task.config, Share(machine, needed), nodes=1)
    except DoesNotFitError as error:
        return replace(task, refused=Failure("out_of_memory", str(error)), slots=needed)
    except ConfigError as error:
        return replace(task, refused=Failure("mistake", str(error)), slots=needed)
    return replace(task, plan=plan, slots=needed)


def _fitting(task: Task, machine: Machine) -> Task:
    """The task itself, or where its estimate is above the memory that there is, with the largest micro-batch below."""
    out_of_memory = task.refused is not None and task.refused.kind == "out_of_memory"
    return (smaller(task, machine) or task) if out_of_memory else task


def _named_ranks(config: RunConfig) -> int | None:
    """The ranks that the layout names; None where data parallelism takes what the devices leave."""
    parallel = config.parallel
    return None if parallel.dp is None else parallel.tp * parallel.cp * parallel.pp * parallel.dp


def smaller(task: Task, machine: Machine) -> Task | None:
    """The task with the next smaller micro-batch that works, at the same global batch; None where there is none.

    The run and its record tell the one that was asked for.
    """
    if task.config is None:
        return None
    training = task.config.training
    tried = task.plan.config.training.micro_batch_size if task.plan else training.micro_batch_size
    asked = task.asked or tried
    for size in range(tried - 1, 0, -1):
        changed = training.model_copy(update={"micro_batch_size": size, "micro_batch_size_asked": asked})
        config = task.config.model_copy(update={"training": changed})
        try:
            plan = plan_on(config, Share(machine, task.slots), nodes=1)
        except ConfigError:
            continue
        if plan.config.training.micro_batch_size == size:
            extra = (f"training.micro_batch_size={size}", f"training.micro_batch_size_asked={asked}")
            return replace(task, words=(*task.words, *extra), plan=plan, refused=None, asked=asked)
    return None
