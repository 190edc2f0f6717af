"""Plans of runs on a cluster that need not be available: ranks, stages, memory, communication and step time."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from math import gcd

from efficientbench.architecture.variant import UndeclaredError, known
from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout, fit_micro_batch, whole_nodes
from efficientbench.config.schema import RunConfig
from efficientbench.costs.memory import rank_experts, rank_parameters
from efficientbench.costs.rank_grid import RankGrid
from efficientbench.devices.base import Device
from efficientbench.devices.cpu import CPU
from efficientbench.devices.registry import all_devices, device_called, device_of_backend
from efficientbench.metrics.sensors.hardware import DeviceRates
from efficientbench.planning.basis import Basis, basis
from efficientbench.planning.plan import Plan, make_plan, with_kernels
from efficientbench.planning.step_time import Projection, project


@dataclass(frozen=True)
class ClusterPlan:
    """The plan of a run on a number of ranks."""

    plan: Plan
    grid: RankGrid
    stage_parameters: tuple[int, ...]
    """Parameters of a rank of each pipeline stage: see the function of this name."""
    basis: Basis | None
    """What projections on the named device stand on; None if the plan names no device."""
    projection: Projection | None
    """The projected step; None where rates are missing."""
    not_projected: str | None
    """Why there is no projection; None where there is one."""

    @property
    def rates(self) -> DeviceRates | None:
        """Rates of the named device; None if the plan names no device."""
        return None if self.basis is None else self.basis.rates

    @property
    def fullest_stage(self) -> int:
        """The stage whose ranks need most memory; the first if no formula gives their memory."""
        if known(lambda: self.plan.memory) is None:
            return 0
        return max(range(self.plan.layout.pp), key=lambda stage: self.plan.memory[stage].total)


def make_cluster_plan(config: RunConfig, world: int, devices_per_node: int, device: str | None) -> ClusterPlan:
    """Return the plan of a run on `world` accelerators, `devices_per_node` in each node.

    Args:
        config: the run's configuration; an unset dp takes all ranks.
        world: number of ranks.
        devices_per_node: ranks on each node; a smaller world is one node.
        device: a name that `basis` takes, like 'H100 SXM'; None: the plan has no step time.

    Raises:
        ConfigError: the layout cannot work on `world` ranks; the message says what would.
        DeviceError: the configuration names an unknown device type.
        MetricsError: as `basis`.
    """
    found = basis(device, config, world) if device else None
    rates = found.rates if found else None
    config, layout = layout_of_world(config, world, devices_per_node)
    chosen = accelerator(config, rates)
    config = with_kernels(config, chosen)
    projection, not_projected = None, None
    if found is None or rates is None:
        not_projected = "--device NAME, like --device 'H100 SXM', gives a step's time"
    elif layout.nodes > 1 and rates.between_nodes_bytes_s is None:
        not_projected = f"what the network of a node of {rates.name} carries is not in the table of devices"
    else:
        try:
            projection = project(config, layout, rates, found.reached.efficiency)
        except UndeclaredError as error:
            not_projected = str(error)
    return ClusterPlan(
        plan=make_plan(config, layout, chosen.runtime_bytes),
        grid=RankGrid(layout),
        stage_parameters=stage_parameters(config, layout),
        basis=found,
        projection=projection,
        not_projected=not_projected,
    )


def accelerator(config: RunConfig, rates: DeviceRates | None) -> Device:
    """Return the device type of a planned run: for `auto` the type whose collective backend a named device uses.

    Raises DeviceError: the configuration names an unknown device type.
    """
    if config.device != "auto":
        return device_called(config.device)
    return all_devices()[0] if rates is None else device_of_backend(rates.backend)


def layout_of_world(config: RunConfig, world: int, devices_per_node: int) -> tuple[RunConfig, Layout]:
    """Return the configuration with a micro-batch that fits all replicas, and its layout on `world` ranks.

    Raises ConfigError: the ranks do not fill complete nodes or complete replicas, or the layout cannot work.
    """
    per_node, nodes = whole_nodes(world, devices_per_node)
    parallel = config.parallel
    model_ranks = parallel.tp * parallel.cp * parallel.pp
    if parallel.dp is not None and model_ranks * parallel.dp != world:
        fitting = f"set it to {world // model_ranks}" if world % model_ranks == 0 else "change tp, cp or pp"
        raise ConfigError(
            f"parallel.dp: tp × cp × pp × dp = {parallel.tp} × {parallel.cp} × {parallel.pp} × {parallel.dp} = "
            f"{number_of(model_ranks * parallel.dp, 'rank')}, but --world is {world}: leave dp out, or {fitting}"
        )
    if parallel.dp is None and world % model_ranks:
        whole = world // model_ranks
        near = " or ".join(str(count * model_ranks) for count in (whole, whole + 1) if count)
        are = "rank is" if world == 1 else "ranks are"
        raise ConfigError(
            f"--world: {world} {are} not whole replicas of tp × cp × pp = {parallel.tp} × {parallel.cp} × "
            f"{parallel.pp} = {model_ranks}: {near} would be, or another tp, cp or pp"
        )
    config = fit_micro_batch(config, per_node, nodes)
    return config, Layout.of(config, per_node, nodes)


def stage_parameters(config: RunConfig, layout: Layout) -> tuple[int, ...]:
    """Return the parameters of a rank of each pipeline stage, as the engine's own model has them.

    Where torch or the engine is not installed they are counted by the formulas, which give the same.

    Raises UndeclaredError: neither the engine is installed nor has a variant a formula.
    """
    if find_spec("torch") and find_spec("megatron"):
        return tuple(count_stage_parameters(config, layout))
    experts = rank_experts(config, layout)
    return tuple(rank_parameters(config, layout, stage) + experts for stage in range(layout.pp))


def count_stage_parameters(config: RunConfig, layout: Layout) -> list[int]:
    """Count the parameters of a rank of each pipeline stage in the engine's own model on the meta device.

    The process groups have the fewest replicas that share the experts, and a backend that sends nothing; further
    replicas hold the same parameters. This changes torch and the engine for the process, as a run on a CPU does.
    """
    CPU().prepare(0)
    with warnings.catch_warnings():
        # megatron warns of missing optional packages, which a count does not need.
        warnings.simplefilter("ignore")
        logging.getLogger("megatron").setLevel(logging.ERROR)
        # Imported late: the engine takes seconds to load, and finds the CPU only after `prepare`.
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        from efficientbench.model.gpt import stages_on_meta
        from efficientbench.training import groups

        per_stage = layout.tp * layout.cp * (layout.ep // gcd(layout.ep, layout.cp))
        counts = []
        for stage in range(layout.pp):
            dist.init_process_group("fake", store=FakeStore(), rank=stage * per_stage, world_size=layout.pp * per_stage)
            try:
                with groups.model_parallel(config.parallel, config.training.seed):
                    parts = stages_on_meta(config)
                counts.append(sum(parameter.numel() for part in parts for parameter in part.parameters()))
            finally:
                dist.destroy_process_group()
    return counts
