"""The plan of a run before anything starts: its parameters, length, layout and memory, and whether that fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from math import lcm
from typing import Protocol

from efficientbench.config.budget import Budget, plan_budget
from efficientbench.config.errors import ConfigError
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.config.registry import attention_of
from efficientbench.config.schema import RunConfig
from efficientbench.config.variant import known
from efficientbench.costs.memory import RankMemory, memory_by_stage
from efficientbench.costs.model import Flops, Parameters, count_parameters, flops_per_token
from efficientbench.devices.base import Device
from efficientbench.devices.registry import device_called


class DoesNotFitError(ConfigError):
    """The memory estimate of a run is above the memory that there is."""


class Hardware(Protocol):
    """The properties of a node's devices that a plan needs. `Device` has them."""

    @property
    def runtime_bytes(self) -> int:
        """Memory that a rank takes beside its tensors, in bytes."""

    def count(self) -> int:
        """Return the number of devices that a run may use on a node."""

    def fuses(self) -> bool:
        """Return whether torch.compile makes faster kernels for the devices than torch's own."""

    def memory_capacity_bytes(self) -> int | None:
        """Return the memory of one device, in bytes; None where the devices use the host's memory."""


@dataclass(frozen=True)
class Plan:
    """The figures of a run, computed from its configuration."""

    config: RunConfig
    layout: Layout
    budget: Budget
    runtime_bytes: int
    """Memory that a rank takes beside its tensors."""

    @cached_property
    def parameters(self) -> Parameters:
        """Parameters of the model. Raises UndeclaredError where a variant declares no formula; so do the others."""
        return count_parameters(self.config.model)

    @cached_property
    def flops(self) -> Flops:
        """FLOPs of a token."""
        training = self.config.training
        return flops_per_token(self.config.model, training.seq_len, training.recompute)

    @cached_property
    def memory(self) -> tuple[RankMemory, ...]:
        """Peak memory of a rank of each pipeline stage."""
        return memory_by_stage(self.config, self.layout, self.runtime_bytes)

    @property
    def length(self) -> str:
        """The run's optimizer steps in words; its epochs where these set its length and its text is not known."""
        if self.budget.counted:
            return number_of(self.budget.steps, "step")
        return f"{number_of(self.config.training.epochs or 1, 'epoch')} in steps"

    def node_memory_bytes(self) -> int:
        """Return the peak memory of all ranks of a node, on the node that needs most."""
        # Stages are the slowest dimension of the grid of ranks.
        per_stage = self.layout.tp * self.layout.cp * self.layout.dp
        ranks = [self.memory[rank // per_stage].total for rank in range(self.layout.world_size)]
        per_node = self.layout.ranks_per_node
        return max(sum(ranks[first : first + per_node]) for first in range(0, len(ranks), per_node))

    def rank_memory_bytes(self) -> int:
        """Return the peak memory of the rank that needs most."""
        return max(stage.total for stage in self.memory)


def make_plan(config: RunConfig, layout: Layout, runtime_bytes: int) -> Plan:
    """Return the plan of a run on a layout; a rank takes `runtime_bytes` beside its tensors.

    Raises ConfigError: the run is too short to be measured.
    """
    parameters = known(lambda: count_parameters(config.model).total)
    return Plan(config, layout, plan_budget(config, parameters), runtime_bytes)


def plan_anywhere(config: RunConfig) -> Plan:
    """Return the plan of a run on any machine: with the fewest data-parallel replicas, and a CPU for `auto`.

    Raises ConfigError: the layout cannot work. Raises DeviceError: there is no such device type.
    """
    device = planned_device(config)
    config = with_kernels(config, device)
    return make_plan(config, Layout.of(config, devices=1, oversubscribe=True), device.runtime_bytes)


def planned_device(config: RunConfig) -> Device:
    """Return the device type that `plan_anywhere` plans for.

    Raises DeviceError: there is no device type of the configured name.
    """
    return device_called("cpu" if config.device == "auto" else config.device)


def with_kernels(config: RunConfig, device: Hardware) -> RunConfig:
    """Return the configuration with `kernels.fused` set: by the device where the user has not set it."""
    if config.kernels.fused is not None:
        return config
    kernels = config.kernels.model_copy(update={"fused": device.fuses()})
    return config.model_copy(update={"kernels": kernels})


def check_fits(plan: Plan, capacity_bytes: int, shared: bool) -> None:
    """Check that a run fits into memory; a run whose memory no formula gives is left to try.

    Args:
        plan: the plan of the run.
        capacity_bytes: memory of one device or, with `shared`, of a node.
        shared: whether all ranks of a node share `capacity_bytes`, as on a CPU.

    Raises:
        DoesNotFitError: it does not fit; the message has estimate, capacity, and changes that would make it fit.
    """
    needed = known(lambda: _needed(plan, shared))
    if needed is None or needed <= capacity_bytes:
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
    """Yield of each kind of change the mildest that makes the run fit, if any does."""
    kinds = (_smoke, _smaller_micro_batch, _recomputation, _shorter_sequence, _shared_experts, _more_ranks)
    for changes in (kind(plan) for kind in kinds):
        for text, config in changes:
            try:
                layout = Layout.of(config, plan.layout.world_size, plan.layout.nodes, oversubscribe=True)
                other = make_plan(config, layout, plan.runtime_bytes)
            except ConfigError:
                continue
            if _needed(other, shared) <= capacity_bytes:
                yield text
                break


TP_SIZES = (1, 2, 4, 8)
"""Tensor-parallel sizes that a remedy may name."""
PP_SIZES = (1, 2, 4, 8, 16)
"""Numbers of pipeline stages that a remedy may name."""

Changes = Iterator[tuple[str, RunConfig]]
"""Command-line arguments that change a run, each with the changed configuration."""


def _smoke(plan: Plan) -> Changes:
    if plan.config.smoke:
        return
    # A run of the user's own matrix may be missing in the shipped one.
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
    """Yield larger ep, each with as many replicas as share the experts."""
    layout, moe = plan.layout, plan.config.model.moe
    for ep in range(layout.ep + 1, moe.experts + 1 if moe else 0):
        dp = lcm(layout.dp, ep)
        changes = {"ep": ep, "dp": dp}
        ranks = layout.tp * layout.cp * layout.pp * dp
        yield f"parallel.ep={ep} parallel.dp={dp} ({ranks} ranks)", _with(plan, "parallel", changes)


def _more_ranks(plan: Plan) -> Changes:
    """Yield larger grids on the same nodes, those with fewest ranks first.

    Among as many ranks, data parallelism comes before stages, and these before tensor parallelism, which communicates
    most.
    """
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


def hidden(config: RunConfig) -> str | None:
    """Return why a run's sequences are too short to show what its attention does; None where they are not."""
    reason = attention_of(config.model).hidden_at(config.model, config.training.seq_len)
    return reason and f"attention {config.model.attention.kind!r} does not show in this run: {reason}"


def memory_parts(memory: RankMemory) -> list[tuple[str, int]]:
    """Return the name and the bytes of each part of a rank's peak memory."""
    return [(field.name.replace("_", " "), getattr(memory, field.name)) for field in fields(memory)]


def number_of(number: int, noun: str) -> str:
    """Return a number with its noun, as 1 rank or 2,048 ranks."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def gigabytes(size_bytes: float) -> str:
    """Format bytes in GB of 10^9 bytes."""
    return f"{size_bytes / 1e9:.2f} GB"
