"""Build the runs of a sweep: every chosen name × combination of the axes × seed, each with its own folder."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from efficientbench.architecture.variant import known
from efficientbench.basics.errors import ConfigError, DataError, MetricsError
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.basics.part import AUTO
from efficientbench.config.matrix import MATRIX
from efficientbench.config.schema import RunConfig
from efficientbench.launchers.processes.failure import Failure
from efficientbench.metrics.files import write_whole
from efficientbench.planning.fitting import DoesNotFitError
from efficientbench.planning.plan import Hardware, Plan
from efficientbench.planning.vocabulary import is_given, with_vocabulary
from efficientbench.running.micro_batch import decide, resized
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.resume import complete_record, settings
from efficientbench.running.run import Pretraining, plan_on
from efficientbench.sweep.combinations import Combination
from efficientbench.sweep.machine import Machine, slots_needed
from efficientbench.sweep.selection import Request, chosen_combinations

# The order of a sweep's repeats: configurations take turns, so that a drift of the machine does not look like a
# difference of models.
#
# Each round runs every configuration once, in random order, and every second round repeats the one before it
# backwards (A C B B C A …): a steady drift then slows all configurations of such a pair of rounds equally. The seed
# and the order are in `sweep/order.json` of the suite's folder.


ORDER = "order.json"


def take_turns(tasks: Sequence[Task], folder: Path) -> list[Task]:
    """Return the tasks of repeated configurations in turns, and write that order and its seed into the sweep's folder.

    The seed is an earlier call's, if the sweep was called before.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = folder / ORDER
    try:
        seed = int(parse_json(read_whole(path))["seed"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        seed = secrets.randbits(32)
    ordered = in_turns(tasks, seed)
    content = {"seed": seed, "order": [task.id for task in ordered]}
    try:
        write_whole(path, json.dumps(content, indent=2) + "\n")
    except MetricsError as error:
        raise ConfigError(str(error)) from None
    return ordered


def in_turns(tasks: Sequence[Task], seed: int) -> list[Task]:
    """Return the tasks in rounds, in the random order of `seed`; all configurations have equally many tasks."""
    repeats: dict[Path, list[Task]] = {}
    for task in tasks:
        repeats.setdefault(task.folder.path.parent, []).append(task)
    chance = random.Random(seed)
    places = list(range(len(repeats)))
    ordered: list[Task] = []
    for number, each in enumerate(zip(*repeats.values(), strict=True)):
        places.reverse() if number % 2 else chance.shuffle(places)
        ordered += [each[place] for place in places]
    return ordered


class Planned(NamedTuple):
    """The figures of a run before it starts; None if they are unknown."""

    ranks: int
    steps: int | None
    tokens: int | None
    micro_batch_size: int
    node_memory_bytes: float | None
    """Peak memory of all ranks of a node together."""


@dataclass(frozen=True)
class Task:
    """One run of a sweep."""

    id: str
    """The name of the run's folder, with the seed if the run is one of several repeats. It is a valid file name."""
    arguments: tuple[str, ...]
    """The command line that starts the run, after `efficientbench`."""
    folder: OutputFolder
    config: RunConfig | None = None
    """The configuration as the user wrote it; None if it is refused before it is planned."""
    plan: Plan | None = None
    """The run's plan on this machine; None if the run is refused."""
    refused: Failure | None = None
    too_large: Plan | None = field(default=None, kw_only=True)
    """The plan of a run that is refused because it does not fit."""
    slots: int = 1
    asked: int | None = field(default=None, kw_only=True)
    """The micro-batch that the user wrote, if a smaller one replaces it; else None."""
    generates: bool = field(default=False, kw_only=True)
    """Whether generation with the trained model is measured too."""

    @property
    def configuration(self) -> str:
        """Hash of the settings, equal for tasks that compute the same."""
        content = self._settings() or {"arguments": self.arguments}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def _settings(self) -> dict[str, Any] | None:
        """Return the settings that decide what the run computes; None without a configuration."""
        return settings(self.config.model_dump(mode="json")) if self.config else None

    @property
    def generation_arguments(self) -> tuple[str, ...]:
        """The command line that measures generation, after `efficientbench`."""
        model = self.config.model if self.config else None
        kinds = {part: getattr(model, part).kind for part in ("attention", "position")} if model else {}
        # Code from outside is loaded because the command line names it, not because a folder does.
        outside = (f"model.{part}.kind={kind}" for part, kind in kinds.items() if ":" in kind)
        return "generate", str(self.folder.path), "--measure", *outside

    @property
    def ranks(self) -> int:
        return self.plan.layout.world_size if self.plan else 1

    @property
    def micro_batch_size(self) -> int:
        """The micro-batch that the user wrote, fitted to the devices."""
        if self.asked is not None:
            return self.asked
        config = self.plan.config if self.plan else self.config
        return config.training.micro_batch_size if config else 0

    @property
    def stop_grace_s(self) -> float:
        """Seconds that the run's ranks have to save after a signal."""
        assert self.config is not None, "a refused run does not start"
        return self.config.faults.stop_grace_s

    @property
    def steps(self) -> int | None:
        """Steps of the run; None if they are unknown before it starts."""
        return self.plan.budget.steps if self.plan is not None and self.plan.budget.counted else None

    def planned(self) -> Planned | None:
        """Return the run's figures before it starts; None if it is refused for another reason than memory."""
        plan = self.plan or self.too_large
        if plan is None:
            return None
        steps, tokens = (plan.budget.steps, plan.budget.tokens) if plan.budget.counted else (None, None)
        micro_batch_size = plan.config.training.micro_batch_size
        return Planned(plan.layout.world_size, steps, tokens, micro_batch_size, known(plan.node_memory_bytes))

    def is_trained(self, device_name: str, smaller_too: bool) -> bool:
        """Return whether the run's folder has the complete record of its configuration on devices of this name.

        `smaller_too`: whether a record with a micro-batch reduced for lack of memory counts.
        """
        if self.config is None:
            return False
        return complete_record(self.folder, self.config, self.micro_batch_size, device_name, smaller_too) is not None


def build_tasks(request: Request, machine: Machine, jobs: int | None, dry_run: bool = False) -> list[Task]:
    """Return every run of the sweep, planned on this machine.

    A combination that cannot run is refused with its reason, and the others stay.

    Args:
        request: the sweep's request.
        machine: the machine that runs it.
        jobs: as in `slots_needed`.
        dry_run: whether nothing will run: an `auto` micro-batch then follows from plans alone, and runs that do not
            fit are returned even if no other run is left.

    Raises:
        ConfigError: the request itself is wrong, or no run that it names can run.
        LaunchError: the trial of a micro-batch failed for another reason than memory.
    """
    chosen = [_with_vocabulary(each) for each in chosen_combinations(request)]
    combinations = _with_micro_batch(chosen, machine, jobs, dry_run)
    tasks = [task for each in combinations for task in _tasks(request, each, machine, jobs)]
    if request.retry_smaller:
        tasks = [_fitting(task, machine) for task in tasks]
    refused = [task.refused for task in tasks if task.refused]
    shown = dry_run and any(each.kind == "out_of_memory" for each in refused)
    if len(refused) == len(tasks) and not shown:
        raise ConfigError(list(dict.fromkeys(each.reason for each in refused)))
    return tasks


def _with_vocabulary(combination: Combination[RunConfig]) -> Combination[RunConfig]:
    """Return the combination with the vocabulary of its text's tokenizer if that is larger, as `run` does."""
    if combination.refused is not None:
        return combination
    try:
        config, _ = with_vocabulary(combination.config, is_given(combination.overrides))
    except (ConfigError, DataError) as error:
        return replace(combination, refused=str(error))
    return replace(combination, config=config)


def _with_micro_batch(
    combinations: list[Combination[RunConfig]], machine: Machine, jobs: int | None, dry_run: bool
) -> list[Combination[RunConfig]]:
    """Return the combinations with one micro-batch, chosen for all combinations in which it is `auto`."""
    runs: list[tuple[RunConfig, Hardware]] = [
        (each.config, machine.part(slots_needed(machine, jobs, _named_ranks(each.config))))
        for each in combinations
        if each.refused is None and each.config.training.micro_batch_size == AUTO
    ]
    if not runs:
        return combinations
    size = decide(runs, machine.type, machine.name, trial=not dry_run, nodes=machine.nodes)
    decided = f"training.micro_batch_size={size}"
    return [
        replace(each, config=resized(each.config, size), overrides=(*each.overrides, decided))
        if each.config.training.micro_batch_size == AUTO
        else each
        for each in combinations
    ]


def _tasks(request: Request, combination: Combination[RunConfig], machine: Machine, jobs: int | None) -> list[Task]:
    """Return the task of one combination, or one for each seed."""
    config = combination.config
    refused = Failure("mistake", combination.refused) if combination.refused else None
    matrix = () if request.matrix == MATRIX else ("--matrix", str(request.matrix))
    smoke = ("--smoke",) if request.smoke else ()
    arguments = ("run", combination.name, *matrix, *smoke, *combination.labelled)
    if request.repeat is None:
        task = Task(config.name, arguments, OutputFolder.of(config), config, generates=request.generate)
        return [_planned(task, refused, machine, jobs)]
    tasks = []
    for index in range(request.repeat):
        seeded = Pretraining().repeated(config, index)
        seed = seeded.training.seed
        own = (*arguments, "--repeat", "1", f"training.seed={seed}")
        folder = OutputFolder.of_repeat(seeded)
        task = Task(f"{config.name}__seed_{seed}", own, folder, seeded, generates=request.generate)
        tasks.append(_planned(task, refused, machine, jobs))
    return tasks


def _planned(task: Task, refused: Failure | None, machine: Machine, jobs: int | None) -> Task:
    """Return the task with its plan and slots, or with the reason why it cannot run here."""
    if refused is not None or task.config is None:
        return replace(task, config=None, refused=refused)
    needed = slots_needed(machine, jobs, _named_ranks(task.config))
    try:
        plan = plan_on(task.config, machine.part(needed), machine.nodes)
    except DoesNotFitError as error:
        return replace(task, refused=Failure("out_of_memory", str(error)), too_large=error.plan, slots=needed)
    except ConfigError as error:
        return replace(task, refused=Failure("mistake", str(error)), slots=needed)
    return replace(task, plan=plan, slots=needed)


def _fitting(task: Task, machine: Machine) -> Task:
    """Return the task, with the largest micro-batch that fits if its estimate exceeds the memory."""
    out_of_memory = task.refused is not None and task.refused.kind == "out_of_memory"
    return (smaller(task, machine) or task) if out_of_memory else task


def _named_ranks(config: RunConfig) -> int | None:
    """Return the number of ranks that the layout sets; None if dp takes all remaining devices."""
    parallel = config.parallel
    return None if parallel.dp is None else parallel.tp * parallel.cp * parallel.pp * parallel.dp


def smaller(task: Task, machine: Machine) -> Task | None:
    """Return the task with the next smaller micro-batch that works, at the same global batch; None without one.

    The task's configuration, and so the record's, keeps the micro-batch that the user wrote.
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
            plan = plan_on(config, machine.part(task.slots), machine.nodes)
        except ConfigError:
            continue
        if plan.config.training.micro_batch_size == size:
            extra = (f"training.micro_batch_size={size}", f"training.micro_batch_size_asked={asked}")
            arguments = (*task.arguments, *extra)
            return replace(task, arguments=arguments, plan=plan, refused=None, too_large=None, asked=asked)
    return None
