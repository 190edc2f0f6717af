"""The plan of a run before anything starts: its parameters, length, layout and memory, and whether that fits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Protocol

from efficientbench.config.budget import Budget, plan_budget
from efficientbench.config.layout import Layout
from efficientbench.config.registry import attention_of
from efficientbench.config.schema import RunConfig
from efficientbench.config.variant import known
from efficientbench.costs.memory import RankMemory, memory_by_stage
from efficientbench.costs.model import Flops, Parameters, count_parameters, flops_per_token
from efficientbench.devices.base import Device
from efficientbench.devices.registry import device_called
from efficientbench.language.counted import number_of


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


def hidden(config: RunConfig) -> str | None:
    """Return why a run's sequences are too short to show what its attention does; None where they are not."""
    reason = attention_of(config.model).hidden_at(config.model, config.training.seq_len)
    return reason and f"attention {config.model.attention.kind!r} does not show in this run: {reason}"


def memory_parts(memory: RankMemory) -> list[tuple[str, int]]:
    """Return the name and the bytes of each part of a rank's peak memory."""
    return [(field.name.replace("_", " "), getattr(memory, field.name)) for field in fields(memory)]


def gigabytes(size_bytes: float) -> str:
    """Format bytes in GB of 10^9 bytes."""
    return f"{size_bytes / 1e9:.2f} GB"
