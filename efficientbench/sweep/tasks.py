"""Build the trainings of a sweep: every chosen name × combination of the axes × seed, each with its own folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from efficientbench.architecture.variant import known
from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.basics.part import AUTO
from efficientbench.config.matrix import MATRIX
from efficientbench.config.schema import RunConfig
from efficientbench.devices.quantized import form_of
from efficientbench.launchers.processes.failure import Failure
from efficientbench.metrics.records.record import RunRecord
from efficientbench.planning.fitting import DoesNotFitError
from efficientbench.planning.plan import Hardware, Plan
from efficientbench.planning.text import text_of
from efficientbench.planning.vocabulary import is_given, with_vocabulary
from efficientbench.running.micro_batch import decide
from efficientbench.running.resume import SAME, complete_record
from efficientbench.running.run import Pretraining, plan_on
from efficientbench.sweep.combinations import Combination
from efficientbench.sweep.comparable import made_comparable
from efficientbench.sweep.estimate import Estimate, estimate
from efficientbench.sweep.machine import Machine, slots_needed
from efficientbench.sweep.selection import Request, chosen_combinations, matched_combinations
from efficientbench.sweep.task import PlannedFigures, Task, check_some_can_run, repeats


@dataclass(frozen=True)
class TrainingTask(Task):
    """One pretraining, SFT or RL run of a sweep."""

    unhashed = SAME
    config: RunConfig | None = None
    plan: Plan | None = None
    """The run's plan on this machine; None if the run is refused."""
    too_large: Plan | None = field(default=None, kw_only=True)
    """The plan of a run that is refused because it does not fit."""

    @property
    def generation_arguments(self) -> tuple[str, ...]:
        model = self.config.model if self.config else None
        kinds = {part: getattr(model, part).kind for part in ("attention", "position")} if model else {}
        # Code from outside is loaded because the command line names it, not because a folder does.
        outside = (f"model.{part}.kind={kind}" for part, kind in kinds.items() if ":" in kind)
        return *super().generation_arguments, *outside

    @property
    def micro_batch_size(self) -> int:
        """The micro-batch that the user wrote, fitted to the devices."""
        if self.asked is not None:
            return self.asked
        config = self.plan.config if self.plan else self.config
        return config.training.micro_batch_size if config else 0

    def planned(self) -> PlannedFigures | None:
        plan = self.plan or self.too_large
        if plan is None:
            return None
        steps, tokens = (plan.budget.steps, plan.budget.tokens) if plan.budget.counted else (None, None)
        micro_batch_size = plan.config.training.micro_batch_size
        return PlannedFigures(plan.layout.world_size, steps, tokens, micro_batch_size, known(plan.node_memory_bytes))

    def estimate(self, machine: Machine, records: Sequence[RunRecord], cores: float) -> Estimate | None:
        return None if self.plan is None else estimate(self.plan, machine, records, cores)

    def text(self) -> str | None:
        try:
            return None if self.plan is None else str(text_of(self.plan))
        except DataError as error:
            return f"data.path: {error}"

    def is_trained(self, device_name: str, smaller_too: bool) -> bool:
        if self.config is None:
            return False
        return complete_record(self.folder, self.config, self.micro_batch_size, device_name, smaller_too) is not None

    def smaller(self, machine: Machine) -> TrainingTask | None:
        """Return the task with the next smaller micro-batch that works, at the same global batch; None without one.

        The task's configuration, and so the record's, keeps the micro-batch that the user wrote.
        """
        if self.config is None:
            return None
        training = self.config.training
        tried = self.plan.config.training.micro_batch_size if self.plan else training.micro_batch_size
        asked = self.asked or tried
        for size in range(tried - 1, 0, -1):
            config = self.config.changed("training", micro_batch_size=size, micro_batch_size_asked=asked)
            try:
                plan = plan_on(config, machine.part(self.slots), machine.nodes)
            except ConfigError:
                continue
            if plan.config.training.micro_batch_size == size:
                extra = (f"training.micro_batch_size={size}", f"training.micro_batch_size_asked={asked}")
                arguments = (*self.arguments, *extra)
                return replace(self, arguments=arguments, plan=plan, refused=None, too_large=None, asked=asked)
        return None


def build_tasks(request: Request, machine: Machine, jobs: int | None, dry_run: bool = False) -> list[TrainingTask]:
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
    chosen = made_comparable(request, chosen, lambda config: _can_run(config, machine, jobs))
    combinations = with_micro_batch(chosen, machine, jobs, dry_run)
    tasks = [task for each in combinations for task in tasks_of(request, each, machine, jobs)]
    if request.retry_smaller:
        tasks = [_fitting(task, machine) for task in tasks]
    if not dry_run:
        tasks = [_with_text(task) for task in tasks]
    check_some_can_run(tasks, dry_run)
    return tasks


def _can_run(config: RunConfig, machine: Machine, jobs: int | None) -> bool:
    try:
        plan_on(config, machine.part(slots_needed(machine, jobs, _named_ranks(config))), machine.nodes)
    except ConfigError:
        return False
    return True


def sized(
    combinations: Sequence[Combination[RunConfig]], matrix: Path, tell: bool = True
) -> list[Combination[RunConfig]]:
    """Return the combinations with the vocabulary of their text, and the size that their `match` asks for.

    tell: as of `matched_combinations`.
    """
    return matched_combinations([_with_vocabulary(each) for each in combinations], matrix, tell)


def _with_vocabulary(combination: Combination[RunConfig]) -> Combination[RunConfig]:
    """Return the combination with the vocabulary of its text's tokenizer if that is larger, as `run` does."""
    if combination.refused is not None:
        return combination
    try:
        config, _ = with_vocabulary(combination.config, is_given(combination.overrides))
    except (ConfigError, DataError) as error:
        return replace(combination, refused=str(error))
    return replace(combination, config=config)


def with_micro_batch(
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
    added = f"training.micro_batch_size={size}"
    return [
        replace(each, config=each.config.changed("training", micro_batch_size=size), overrides=(*each.overrides, added))
        if each.config.training.micro_batch_size == AUTO
        else each
        for each in combinations
    ]


def tasks_of(
    request: Request, combination: Combination[RunConfig], machine: Machine, jobs: int | None
) -> list[TrainingTask]:
    """Return the task of one combination, or one for each seed. Arguments: as `build_tasks`."""
    refused = Failure("mistake", combination.refused) if combination.refused else None
    matrix = () if request.matrix == MATRIX else ("--matrix", str(request.matrix))
    smoke = ("--smoke",) if request.smoke else ()
    arguments = ("run", combination.name, *matrix, *smoke, *combination.labelled)
    return [
        _planned(
            TrainingTask(name, own, folder, config, generates=request.generate, widths=request.widths),
            *(refused, machine, jobs),
        )
        for config, name, own, folder in repeats(request, combination.config, arguments, Pretraining.seeds)
    ]


def _planned(task: TrainingTask, refused: Failure | None, machine: Machine, jobs: int | None) -> TrainingTask:
    """Return the task with its plan and slots, or with the reason why it cannot run here."""
    if refused is not None or task.config is None:
        return replace(task, config=None, refused=refused)
    needed = slots_needed(machine, jobs, _named_ranks(task.config))
    try:
        for width in task.widths:
            form_of(width, machine.type, task.config.training.dtype, measured=True)
        plan = plan_on(task.config, machine.part(needed), machine.nodes)
    except DoesNotFitError as error:
        return replace(task, refused=Failure("out_of_memory", str(error)), too_large=error.plan, slots=needed)
    except ConfigError as error:
        return replace(task, refused=Failure("mistake", str(error)), slots=needed)
    return replace(task, plan=plan, slots=needed)


def _with_text(task: TrainingTask) -> TrainingTask:
    """Return the task, refused if its text is not there."""
    try:
        if task.plan is not None:
            text_of(task.plan)
    except DataError as error:
        return replace(task, plan=None, refused=Failure("mistake", f"data.path: {error}"))
    return task


def _fitting(task: TrainingTask, machine: Machine) -> TrainingTask:
    """Return the task, with the largest micro-batch that fits if its estimate exceeds the memory."""
    out_of_memory = task.refused is not None and task.refused.kind == "out_of_memory"
    return (task.smaller(machine) or task) if out_of_memory else task


def _named_ranks(config: RunConfig) -> int | None:
    """Return the number of ranks that the layout sets; None if dp takes all remaining devices."""
    parallel = config.parallel
    return None if parallel.dp is None else parallel.tp * parallel.cp * parallel.pp * parallel.dp
