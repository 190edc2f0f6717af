"""What a run will be on a cluster that is not at hand: its grid of ranks, stages, memory, communication and time."""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.config.errors import ConfigError
from efficientbench.config.layout import Layout, fit_micro_batch
from efficientbench.config.schema import RunConfig
from efficientbench.costs.rank_grid import RankGrid
from efficientbench.devices.registry import all_devices
from efficientbench.metrics.hardware import DeviceRates, device_rates
from efficientbench.planning.plan import Plan, make_plan, with_kernels
from efficientbench.planning.step_time import Projection, project


@dataclass(frozen=True)
class ScalePlan:
    """A run on so many ranks."""

    plan: Plan
    grid: RankGrid
    stage_parameters: tuple[int, ...]
    """Of a rank of each pipeline stage, counted in the engine's own model on the meta device."""
    rates: DeviceRates | None
    """Of the named device; None where none is named."""
    projection: Projection | None
    """None where rates are not known."""
    not_projected: str | None
    """Why there is no projection."""

    @property
    def fullest_stage(self) -> int:
        """The stage whose ranks need most memory."""
        return max(range(self.plan.layout.pp), key=lambda stage: self.plan.memory[stage].total)


def make_scale_plan(config: RunConfig, world: int, devices_per_node: int, device: str | None) -> ScalePlan:
    """The plan of a run on `world` accelerators, `devices_per_node` in each node.

    Args:
        config: the run; where it leaves dp open, dp takes all ranks.
        world: ranks in all.
        devices_per_node: ranks of a node; a world smaller than that is one node.
        device: a name of the table of devices, like 'H100 SXM'; None: nothing is said of time.

    Raises:
        ConfigError: a layout that cannot work on so many ranks, with what could.
        MetricsError: a device that the table does not name.
    """
    rates = device_rates(device, config.training.dtype, config.measurement.peak_flops) if device else None
    config, layout = layout_of_world(config, world, devices_per_node)
    types = {each.type: each for each in all_devices()}
    if config.device not in (*types, "auto"):
        raise ConfigError(f"device: {config.device!r} is not one of auto, {', '.join(types)}")
    # Unnamed, the type is that of the device's collectives, or the first that there is of accelerators.
    fitting = (each for each in types.values() if rates is None or each.backend == rates.backend)
    chosen = types.get(config.device) or next(fitting)
    config = with_kernels(config, chosen)
    plan = make_plan(config, layout, chosen.runtime_bytes)
    projection, not_projected = None, "--device NAME, like --device 'H100 SXM', gives a step's time"
    if rates is not None and layout.nodes > 1 and rates.between_nodes_bytes_s is None:
        not_projected = f"what the network of a node of {rates.name} carries is not in the table of devices"
    elif rates is not None:
        projection = project(config, layout, rates)
    # Only now: it takes seconds to load the engine.
    from efficientbench.planning.stages import stage_parameters

    return ScalePlan(
        plan=plan,
        grid=RankGrid(layout),
        stage_parameters=tuple(stage_parameters(config, layout)),
        rates=rates,
        projection=projection,
        not_projected=None if projection else not_projected,
    )


def layout_of_world(config: RunConfig, world: int, devices_per_node: int) -> tuple[RunConfig, Layout]:
    """The layout on `world` ranks; the configuration's micro-batch may be smaller than it was, so that all replicas
    have one."""
    per_node = min(world, devices_per_node)
    if world % per_node:
        below = world // per_node * per_node
        raise ConfigError(
            f"--world: {world} ranks are not whole nodes of {per_node}: {below} or {below + per_node} would be, or "
            "another --devices-per-node"
        )
    parallel = config.parallel
    model_ranks = parallel.tp * parallel.cp * parallel.pp
    if parallel.dp is not None and model_ranks * parallel.dp != world:
        fitting = f"set it to {world // model_ranks}" if world % model_ranks == 0 else "change tp, cp or pp"
        raise ConfigError(
            f"parallel.dp: tp × cp × pp × dp = {parallel.tp} × {parallel.cp} × {parallel.pp} × {parallel.dp} = "
            f"{model_ranks * parallel.dp} ranks, but --world is {world}: leave dp out, or {fitting}"
        )
    if parallel.dp is None and world % model_ranks:
        whole = world // model_ranks
        near = " or ".join(str(count * model_ranks) for count in (whole, whole + 1) if count)
        raise ConfigError(
            f"--world: {world} ranks are not whole replicas of tp × cp × pp = {parallel.tp} × {parallel.cp} × "
            f"{parallel.pp} = {model_ranks}: {near} would be, or another tp, cp or pp"
        )
    nodes = world // per_node
    config = fit_micro_batch(config, per_node, nodes)
    return config, Layout.of(config, per_node, nodes)
