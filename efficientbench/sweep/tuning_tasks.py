"""Build the fine-tunings of a sweep: each with a folder, a command line and its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.finetuning.complete import is_complete
from efficientbench.finetuning.config import SAME, SEEDS, FinetuneConfig
from efficientbench.finetuning.examples.rows import unreadable
from efficientbench.finetuning.planning.plan import RESERVE, TuningPlan, asked
from efficientbench.finetuning.planning.request import plan_request, shape_of_base
from efficientbench.finetuning.planning.step import LINK, REACHED
from efficientbench.launchers.processes.failure import Failure
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.sensors.hardware import device_rates
from efficientbench.sweep.combinations import Combination
from efficientbench.sweep.estimate import Estimate
from efficientbench.sweep.machine import Machine, slots_needed
from efficientbench.sweep.selection import Request, chosen_tunings
from efficientbench.sweep.task import PlannedFigures, Task, check_some_can_run, repeats

_BY_PLAN = "of a fine-tuning: `efficientbench finetune NAME --plan` has memory, traffic and a projected step"
_ENERGY = "of a fine-tuning is not estimated"
_EPOCHS = "training.epochs: the steps follow from the examples; training.steps=N gives them"


@dataclass(frozen=True)
class Projection:
    """The projection of a fine-tuning before it starts."""

    plan: TuningPlan | None
    """The plan; None if it cannot be made."""
    reason: str = ""
    """Why there is no plan, or no time in it."""


def project_tuning(config: FinetuneConfig, world: int, machine: Machine) -> Projection:
    """Return the plan of a fine-tuning on a machine's accelerators.

    Args:
        config: the fine-tuning's configuration, whose batch can be divided among the ranks.
        world: number of ranks on all nodes.
        machine: the machine, with the devices that the run takes on each node.

    Raises ConfigError: the base model lacks the configured matrices or layers, or the ranks do not fill complete nodes.
    """
    if machine.memory_bytes is None:
        return Projection(None, _BY_PLAN)
    if config.training.dtype != "bf16":
        return Projection(None, f"of a fine-tuning in {config.training.dtype}: its plan is of bf16")
    device: str | None = machine.name
    reason = ""
    try:
        device_rates(machine.name, config.training.dtype, config.measurement.peak_flops)
    except MetricsError as error:
        device, reason = None, str(error)
    try:
        shape_of_base(config.model)
    except ConfigError as error:
        return Projection(None, str(error))
    request = plan_request(config, world, len(machine.devices), device, machine.memory_bytes / 1e9)
    return Projection(asked(request), reason)


def does_not_fit(config: FinetuneConfig, projection: Projection, machine: Machine) -> str | None:
    """Return why a plan does not fit the machine's devices; None if it fits, or if there is no plan."""
    plan = projection.plan
    if plan is None or plan.fits:
        return None
    have_gb, layout = plan.request.memory_bytes / 1e9, plan.layout
    return (
        f"{config.name} does not fit: a rank needs about {plan.total_bytes / 1e9:.2f} GB and has {have_gb:g} GB, "
        f"of which {RESERVE:.0%} is kept free; `efficientbench finetune {config.method}_{config.size} --plan "
        f"--world {layout.world} --devices-per-node {layout.per_node} --device '{machine.name}'` "
        "lists the layouts that fit"
    )


def estimate_tuning(config: FinetuneConfig, projection: Projection) -> Estimate:
    """Return the estimated time of all steps, with samples of full length and no overlap within a step."""
    plan, steps = projection.plan, config.training.steps
    step = None if plan is None else plan.time(plan.layout.tokens)
    if plan is None or plan.request.rates is None or step is None:
        return Estimate(None, projection.reason or "what links carry is not known", None, _ENERGY, bounded=False)
    if steps is None:
        return Estimate(None, _EPOCHS, None, _ENERGY, bounded=False)
    source = (
        f"projected from the rates of {plan.request.rates.name}, {REACHED:.0%} of its peak and {LINK:.0%} of each link "
        "assumed, samples of full length, nothing overlaps, training alone"
    )
    return Estimate(step.longest_s * steps, source, None, _ENERGY, bounded=False)


@dataclass(frozen=True)
class TuningTask(Task):
    """One fine-tuning of a sweep."""

    unhashed = SAME
    config: FinetuneConfig | None = None
    world: int = field(default=1, kw_only=True)
    """Number of ranks on all nodes."""
    projection: Projection = field(default=Projection(None), kw_only=True)
    """Projected memory and time, as far as they are known."""

    def planned(self) -> PlannedFigures | None:
        if self.config is None:
            return None
        plan = self.projection.plan
        node_bytes = None if plan is None else plan.layout.per_node * plan.total_bytes
        # The number of tokens follows from the examples.
        return PlannedFigures(
            self.world, self.config.training.steps, None, self.config.training.micro_batch_size, node_bytes
        )

    def estimate(self, machine: Machine, records: Sequence[RunRecord], cores: float) -> Estimate | None:
        return None if self.config is None else estimate_tuning(self.config, self.projection)

    def text(self) -> str | None:
        path = None if self.config is None else self.config.data.path
        return None if path is None else unreadable(path)

    def is_trained(self, device_name: str, smaller_too: bool) -> bool:
        return self.config is not None and is_complete(self.folder, self.config, device_name)


def tuning_tasks(request: Request, machine: Machine, jobs: int | None, elsewhere: bool = False) -> list[TuningTask]:
    """Return every fine-tuning of the sweep; one that cannot run here is refused with its reason.

    Args:
        request: the sweep's request, which names fine-tunings.
        machine: the machine that runs it.
        jobs: as in `slots_needed`.
        elsewhere: whether the machine is another one, for a plan: a fine-tuning that does not fit it is then refused.

    Raises:
        ConfigError: the request itself is wrong, or no fine-tuning that it names can run.
    """
    for given, option in ((request.retry_smaller, "--retry-smaller"), (request.generate, "--generate")):
        if given:
            raise ConfigError(f"{option}: is of trainings, and {', '.join(request.only)} of fine-tunings")
    tasks = [task for each in chosen_tunings(request) for task in _tasks(request, each, machine, jobs, elsewhere)]
    check_some_can_run(tasks, shows_too_large=True)
    return tasks


def _tasks(
    request: Request, chosen: Combination[FinetuneConfig], machine: Machine, jobs: int | None, elsewhere: bool
) -> list[TuningTask]:
    """Return the task of one combination, or one for each repeat's seeds."""
    config = chosen.config
    arguments = ("finetune", chosen.name, *(("--smoke",) if request.smoke else ()), *chosen.labelled)
    # A fine-tuning takes all devices that it sees.
    slots = slots_needed(machine, jobs, None)
    world = config.cpu_ranks if machine.shared else slots * machine.nodes
    reason = chosen.refused
    projection = Projection(None)
    if not reason:
        try:
            config.accumulation(world)
            projection = project_tuning(config, world, machine.part(slots))
        except ConfigError as error:
            reason = str(error)
    refused = Failure("mistake", reason) if reason else None
    too_large = does_not_fit(config, projection, machine) if elsewhere else None
    if too_large:
        refused = Failure("out_of_memory", too_large)
    return [
        TuningTask(
            name,
            own,
            folder,
            None if reason else each,
            refused=refused,
            slots=slots,
            world=world,
            projection=projection,
        )
        for each, name, own, folder in repeats(request, config, arguments, SEEDS)
    ]
