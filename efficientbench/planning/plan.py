"""What a run will be, before anything starts: its model, its length, its layout and the memory that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from math import lcm
from typing import Protocol

from efficientbench.config.budget import Budget, plan_budget
from efficientbench.config.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs import memory as memory_cost
from efficientbench.costs import model as cost
from efficientbench.devices.base import Device
from efficientbench.devices.registry import all_devices


class DoesNotFitError(ConfigError):
    """A run whose estimate is above the memory that there is."""


class Hardware(Protocol):
    """What a plan has to know of the devices that a run may use."""

    @property
    def runtime_bytes(self) -> int:
        """What a rank takes beside its tensors."""

    def count(self) -> int:
        """How many there are on a node."""

    def fuses(self) -> bool:
        """Whether torch.compile makes faster kernels for them than torch's own."""

    def memory_capacity_bytes(self) -> int | None:
        """Memory of one; None where the host's memory is the device's."""


@dataclass(frozen=True)
class Plan:
    """A run's figures, all of them computed from its configuration."""

    config: RunConfig
    layout: Layout
    budget: Budget
    parameters: cost.Parameters
    flops: cost.Flops
    memory: tuple[memory_cost.RankMemory, ...]
    """Peak of a rank of each pipeline stage."""

    def node_memory_bytes(self) -> int:
        """Peak of the ranks of one node together, of the node with most; stages are the grid's slowest dimension."""
        per_stage = self.layout.tp * self.layout.cp * self.layout.dp
        ranks = [self.memory[rank // per_stage].total for rank in range(self.layout.world_size)]
        per_node = self.layout.ranks_per_node
        return max(sum(ranks[first : first + per_node]) for first in range(0, len(ranks), per_node))

    def rank_memory_bytes(self) -> int:
        """Peak of the rank with most."""
        return max(stage.total for stage in self.memory)


def make_plan(config: RunConfig, layout: Layout, runtime_bytes: int) -> Plan:
    """The plan of a run on a layout; `runtime_bytes` is what a rank of its device type needs besides tensors.

    Raises ConfigError when the budget cannot serve measurement.
    """
    return Plan(
        config=config,
        layout=layout,
        budget=plan_budget(config),
        parameters=cost.parameters(config.model),
        flops=cost.flops_per_token(config.model, config.training.seq_len, config.training.recompute),
        memory=memory_cost.memory_by_stage(config, layout, runtime_bytes),
    )


def plan_anywhere(config: RunConfig) -> Plan:
    """The plan of a run without a look at this machine: on the device type that the configuration names, a CPU where
    it names none, and as few data-parallel replicas as it allows.

    Raises ConfigError, also for a device type that does not exist.
    """
    device = planned_device(config)
    config = with_kernels(config, device)
    return make_plan(config, Layout.of(config, devices=1, oversubscribe=True), device.runtime_bytes)


def planned_device(config: RunConfig) -> Device:
    """The device type that `plan_anywhere` plans for.

    Raises ConfigError for one that does not exist.
    """
    types = {device.type: device for device in all_devices()}
    name = "cpu" if config.device == "auto" else config.device
    if name not in types:
        raise ConfigError(f"device: {name!r} is not one of auto, {', '.join(types)}")
    return types[name]


def with_kernels(config: RunConfig, device: Hardware) -> RunConfig:
    """The configuration with the kernels that the device's own nature decides, where it names none."""
    if config.kernels.fused is not None:
        return config
    kernels = config.kernels.model_copy(update={"fused": device.fuses()})
    return config.model_copy(update={"kernels": kernels})


def check_fits(plan: Plan, capacity_bytes: int, shared: bool) -> None:
    """Refuses a run whose estimate is above what the machine has.

    Args:
        plan: of the run.
        capacity_bytes: memory of one device or, with `shared`, of a node whose ranks share it (a CPU).
        shared: whether all ranks of a node share `capacity_bytes`.

    Raises:
        DoesNotFitError: with the estimate, the capacity, and those changes that would make it fit.
    """
    needed = _needed(plan, shared)
    if needed <= capacity_bytes:
        return
    stage = max(plan.memory, key=lambda each: each.total)
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in memory_parts(stage) if size >= 1e7)
    who = "the ranks of a node together need" if shared and plan.layout.ranks_per_node > 1 else "a rank needs"
    where = "this machine has" if shared else "a device has"
    remedies = list(_remedies(plan, capacity_bytes, shared))
    helps = f"what would help: {'; '.join(remedies)}" if remedies else "nothing short of another model would help"
    raise DoesNotFitError(
        f"{plan.config.name} does not fit: {who} about {gigabytes(needed)} and {where} {gigabytes(capacity_bytes)} "
        f"(largest rank: {parts}); {helps}"
    )


def _needed(plan: Plan, shared: bool) -> int:
    return plan.node_memory_bytes() if shared else plan.rank_memory_bytes()


def _remedies(plan: Plan, capacity_bytes: int, shared: bool) -> Iterator[str]:
    """Of each kind of change, the mildest that makes the run fit; none of a kind where none does."""
    kinds = (_smoke, _smaller_micro_batch, _recomputation, _shorter_sequence, _shared_experts, _more_ranks)
    for changes in (kind(plan) for kind in kinds):
        for text, config in changes:
            try:
                layout = Layout.of(config, plan.layout.world_size, plan.layout.nodes, oversubscribe=True)
                other = make_plan(config, layout, plan.memory[0].runtime)
            except ConfigError:
                continue
            if _needed(other, shared) <= capacity_bytes:
                yield text
                break


# Grids that a remedy may name.
TP_SIZES = (1, 2, 4, 8)
PP_SIZES = (1, 2, 4, 8, 16)

Changes = Iterator[tuple[str, RunConfig]]


def _smoke(plan: Plan) -> Changes:
    if plan.config.smoke:
        return
    # Another matrix than the shipped one may name runs that this one does not have.
    with suppress(ConfigError):
        yield "--smoke", resolve(f"{plan.config.variant}_{plan.config.size}", smoke=True)


def _smaller_micro_batch(plan: Plan) -> Changes:
    for size in range(plan.config.training.micro_batch_size - 1, 0, -1):
        yield f"training.micro_batch_size={size}", _with(plan, "training", {"micro_batch_size": size})


def _recomputation(plan: Plan) -> Changes:
    if plan.config.training.recompute != "full":
        yield "training.recompute=full", _with(plan, "training", {"recompute": "full"})


def _shorter_sequence(plan: Plan) -> Changes:
    seq_len = plan.config.training.seq_len // 2
    while seq_len >= 128:
        yield f"training.seq_len={seq_len}", _with(plan, "training", {"seq_len": seq_len})
        seq_len //= 2


def _shared_experts(plan: Plan) -> Changes:
    """The same grid with as many more replicas as it takes to share the experts out."""
    layout, moe = plan.layout, plan.config.model.moe
    for ep in range(layout.ep + 1, moe.experts + 1 if moe else 0):
        dp = lcm(layout.dp, ep)
        changes = {"ep": ep, "dp": dp}
        ranks = layout.tp * layout.cp * layout.pp * dp
        yield f"parallel.ep={ep} parallel.dp={dp} ({ranks} ranks)", _with(plan, "parallel", changes)


def _more_ranks(plan: Plan) -> Changes:
    """Larger grids on the same nodes: the fewest ranks first, of these data parallelism before stages before tensor
    parallelism, which communicates most."""
    layout = plan.layout
    grids = [
        (tp * layout.cp * pp * dp, tp, pp, dp)
        for tp in (layout.tp, *TP_SIZES)
        for pp in (layout.pp, *PP_SIZES)
        for dp in (layout.dp, 2 * layout.dp, 4 * layout.dp, 8 * layout.dp)
        if tp * layout.cp * pp * dp > layout.world_size
    ]
    for ranks, tp, pp, dp in sorted(set(grids)):
        # Experts under tensor parallelism need sequence parallelism.
        sp = tp > 1 and (layout.sp or plan.config.model.moe is not None)
        text = f"parallel.tp={tp} parallel.pp={pp} parallel.dp={dp}" + (" parallel.sp=true" if sp > layout.sp else "")
        yield f"{text} ({ranks} ranks)", _with(plan, "parallel", {"tp": tp, "pp": pp, "dp": dp, "sp": sp})


def _with(plan: Plan, part: str, changes: Mapping[str, object]) -> RunConfig:
    changed = getattr(plan.config, part).model_copy(update=changes)
    return plan.config.model_copy(update={part: changed})


def memory_parts(memory: memory_cost.RankMemory) -> list[tuple[str, int]]:
    """Each part of a rank's peak memory: its name and its bytes."""
    return [(field.name.replace("_", " "), getattr(memory, field.name)) for field in fields(memory)]


def gigabytes(size_bytes: float) -> str:
    """Bytes as text, in GB of 10^9 bytes."""
    return f"{size_bytes / 1e9:.2f} GB"
