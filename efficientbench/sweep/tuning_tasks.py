"""Build the fine-tunings of a sweep: each with a folder, a command line and its devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from efficientbench.config.errors import ConfigError
from efficientbench.finetuning.complete import folder_of, folder_of_repeat, is_complete, with_seeds
from efficientbench.finetuning.config import SAME, FinetuneConfig
from efficientbench.launchers.processes.failure import Failure
from efficientbench.launchers.processes.launch import STOP_GRACE_S
from efficientbench.running.resume import settings
from efficientbench.sweep.combinations import Combination
from efficientbench.sweep.machine import Machine, slots_needed
from efficientbench.sweep.selection import Request
from efficientbench.sweep.tasks import Planned, Task
from efficientbench.sweep.tuning_plan import Projection, does_not_fit, project_tuning
from efficientbench.sweep.tunings import chosen_tunings


@dataclass(frozen=True)
class TuningTask(Task):
    """One fine-tuning of a sweep; `config` and `plan`, which are of trainings, are None."""

    tuning: FinetuneConfig | None = field(default=None, kw_only=True)
    """As the user wrote it; None where it is refused for another reason than memory."""
    world: int = field(default=1, kw_only=True)
    """Ranks of all its nodes."""
    projection: Projection = field(default=Projection(None), kw_only=True)
    """Memory and time, as far as they are known."""

    def _settings(self) -> dict[str, Any] | None:
        return settings(self.tuning.model_dump(mode="json"), SAME) if self.tuning else None

    @property
    def ranks(self) -> int:
        return self.world

    @property
    def stop_grace_s(self) -> float:
        return STOP_GRACE_S

    @property
    def steps(self) -> int | None:
        return self.tuning.training.steps if self.tuning else None

    def planned(self) -> Planned | None:
        if self.tuning is None:
            return None
        plan = self.projection.plan
        node_bytes = None if plan is None else plan.layout.per_node * plan.total_bytes
        # How many tokens the steps have follows from the examples.
        return Planned(self.world, self.steps, None, self.tuning.training.micro_batch_size, node_bytes)

    def is_trained(self, device_name: str, smaller_too: bool) -> bool:
        return self.tuning is not None and is_complete(self.folder, self.tuning, device_name)


def tuning_tasks(request: Request, machine: Machine, jobs: int | None, elsewhere: bool = False) -> list[Task]:
    """Return every fine-tuning of the sweep; one that cannot run here is refused with its reason.

    Args:
        request: the sweep, which names fine-tunings.
        machine: that runs it.
        jobs: as of `slots_needed`.
        elsewhere: whether the machine is not at hand: what does not fit it is then refused, and is a row.

    Raises:
        ConfigError: a mistake in the request itself, or nothing that it names can run.
    """
    for given, option in ((request.retry_smaller, "--retry-smaller"), (request.generate, "--generate")):
        if given:
            raise ConfigError(f"{option}: is of trainings, and {', '.join(request.only)} of fine-tunings")
    tasks = [task for each in chosen_tunings(request) for task in _tasks(request, each, machine, jobs, elsewhere)]
    refused = [task.refused for task in tasks if task.refused]
    shown = any(each.kind == "out_of_memory" for each in refused)
    if len(refused) == len(tasks) and not shown:
        raise ConfigError(list(dict.fromkeys(each.reason for each in refused)))
    return tasks


def _tasks(
    request: Request, chosen: Combination[FinetuneConfig], machine: Machine, jobs: int | None, elsewhere: bool
) -> list[Task]:
    """Return the task of one combination, or one for each repeat's seeds."""
    config = chosen.config
    arguments = ("finetune", chosen.name, *(("--smoke",) if request.smoke else ()), *chosen.labelled)
    # It takes all devices that it sees.
    slots = slots_needed(machine, jobs, None)
    world = config.cpu_ranks if machine.shared else slots * machine.nodes
    reason = chosen.refused or _obstacle(config, world)
    projection = Projection(None)
    if not reason:
        try:
            projection = project_tuning(config, world, machine.part(slots))
        except ConfigError as error:
            reason = str(error)
    refused = Failure("mistake", reason) if reason else None
    too_large = does_not_fit(config, projection, machine) if elsewhere else None
    if too_large:
        refused = Failure("out_of_memory", too_large)
    tasks: list[Task] = []
    for index in range(1 if request.repeat is None else request.repeat):
        each = with_seeds(config, index)
        name, own, folder = config.name, arguments, folder_of(config)
        if request.repeat is not None:
            seed = each.training.seed
            seeds = (f"training.seed={seed}", f"curriculum.seed={each.curriculum.seed}")
            name, own, folder = f"{name}__seed_{seed}", (*arguments, "--repeat", "1", *seeds), folder_of_repeat(each)
        task = TuningTask(
            name,
            own,
            folder,
            refused=refused,
            slots=slots,
            tuning=None if reason else each,
            world=world,
            projection=projection,
        )
        tasks.append(task)
    return tasks


def _obstacle(config: FinetuneConfig, world: int) -> str | None:
    """Return why so many ranks cannot share the batch; None where they can."""
    try:
        config.accumulation(world)
    except ValueError as error:
        return str(error)
    return None
