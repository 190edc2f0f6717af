"""Memory and time of a fine-tuning of a sweep, as `efficientbench finetune NAME --plan` has them."""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.config.errors import ConfigError
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.plan import RESERVE, TuningPlan, asked
from efficientbench.finetuning.request import plan_request, shape_of_base
from efficientbench.finetuning.step import LINK, REACHED
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.hardware import device_rates
from efficientbench.sweep.estimate import Estimate
from efficientbench.sweep.machine import Machine

_BY_PLAN = "of a fine-tuning: `efficientbench finetune NAME --plan` has memory, traffic and a projected step"
_ENERGY = "of a fine-tuning is not estimated"
_EPOCHS = "training.epochs: the steps follow from the examples; training.steps=N gives them"


@dataclass(frozen=True)
class Projection:
    """What is known of a fine-tuning before it starts."""

    plan: TuningPlan | None
    """None: it cannot be made."""
    reason: str = ""
    """Why there is no plan, or no time in it."""


def project_tuning(config: FinetuneConfig, world: int, machine: Machine) -> Projection:
    """Return the plan of a fine-tuning on a machine's accelerators.

    Args:
        config: whose batch can be divided among the ranks.
        world: ranks of all nodes.
        machine: with the devices that the run takes of each node.

    Raises ConfigError: the base model has no such matrices or layers, or the ranks are not whole nodes.
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
    """Return why a plan does not fit the machine's devices; None where it does, or where there is no plan."""
    plan = projection.plan
    if plan is None or plan.fits:
        return None
    have_gb, layout = plan.request.memory_bytes / 1e9, plan.layout
    return (
        f"{config.name} does not fit: a rank needs about {plan.total_bytes / 1e9:.2f} GB, and of {have_gb:g} GB "
        f"{RESERVE:.0%} stays free; `efficientbench finetune {config.method}_{config.size} --plan "
        f"--world {layout.world} --devices-per-node {layout.per_node} --device '{machine.name}'` "
        "lists the layouts that fit"
    )


def estimate_tuning(config: FinetuneConfig, projection: Projection) -> Estimate:
    """Return the time of all steps with samples of full length, where no part of a step overlaps another."""
    plan, steps = projection.plan, config.training.steps
    step = None if plan is None else plan.time(plan.layout.tokens)
    if plan is None or plan.request.rates is None or step is None:
        return Estimate(None, projection.reason or "what links carry is not known", None, _ENERGY)
    if steps is None:
        return Estimate(None, _EPOCHS, None, _ENERGY)
    source = (
        f"projected from the rates of {plan.request.rates.name}, {REACHED:.0%} of its peak and {LINK:.0%} of each link "
        "assumed, samples of full length, nothing overlaps, training alone"
    )
    return Estimate(step.longest_s * steps, source, None, _ENERGY)
