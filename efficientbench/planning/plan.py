"""The plan of a run before anything starts: its parameters, length, layout and memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.architecture.model import OWN_LAYER
from efficientbench.architecture.registry import OWN, SECTIONS, outside
from efficientbench.architecture.variant import known, shown
from efficientbench.basics.counted import number_of
from efficientbench.config.budget import Budget, plan_budget
from efficientbench.config.layout import Layout, check_documents
from efficientbench.config.schema import DataConfig, RunConfig
from efficientbench.costs.memory import RankMemory, memory_by_stage
from efficientbench.costs.model import Flops, Parameters, count_parameters, flops_per_token
from efficientbench.data_tools.chat.find_task import TASKS
from efficientbench.devices.base import Device
from efficientbench.devices.registry import device_called
from efficientbench.training.reinforcement.rewards import check_tested

if TYPE_CHECKING:
    from efficientbench.data_tools.tokens.manifest import Corpus


def not_promised(config: RunConfig, device: Device, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return each part of a run whose bits may differ from one run to the next, with the reason.

    Empty for a run without `training.deterministic`, which promises nothing.
    """
    if not config.training.deterministic:
        return {}
    found = dict(device.may_differ())
    for name, values in device.deterministic_environment().items():
        if environment.get(name, values[0]) not in values:
            found[name] = f"it is {environment[name]!r} in the environment, and {' or '.join(values)} would serve"
    for view in config.model.views.values():
        for section in SECTIONS:
            kind = getattr(view, section).kind
            if kind not in OWN[section] and outside(kind) is not None:
                found[section] = f"{kind} is from outside this project, and its kernels decide"
        kernel = view.attention_variant.may_differ
        found |= {kernel[0]: kernel[1]} if kernel and device.fuses() else {}
    return found


def determinism(config: RunConfig, device: Device) -> str | None:
    """Return the line to print for a run with `training.deterministic`; None for a run without it."""
    if not config.training.deterministic:
        return None
    gaps = "; ".join(f"{part}: {reason}" for part, reason in not_promised(config, device).items())
    promise = "deterministic: the same bits in every run on the same devices, layout and versions of libraries"
    return promise + (f", but perhaps not in {gaps}" if gaps else "")


def attended_tokens(config: RunConfig, corpora: Sequence[Corpus] | None) -> int:
    """Return the tokens of the sequences within which a run attends, for its FLOPs.

    That is `training.seq_len` or, where attention ends with documents, their mean length, rounded and at most a
    sequence. `corpora`: those of the sources; None: they are not tokenized yet, and documents count as whole sequences.
    """
    longest = config.training.seq_len
    if corpora is None or not config.data.attention_within_documents:
        return longest
    # Sources have shares of the tokens, not of the documents.
    documents = sum(
        weight * corpus.documents / corpus.tokens for weight, corpus in zip(config.data.weights, corpora, strict=True)
    )
    return min(max(round(1 / documents), 1), longest)


def known_corpora(data: DataConfig) -> list[Corpus] | None:
    """Return the corpora of all sources, which are tokenized pairs with a manifest; None if one is not.

    Raises:
        DataError: a manifest is damaged.
    """
    sources = [source for source in data.sources if source is not None]
    if len(sources) < len(data.sources):
        return None
    # Imported here, since it loads numpy: most plans precede the download of their corpus.
    from efficientbench.data_tools.tokens.manifest import load_corpus, manifest_path

    # The current folder has no name that a pair could have.
    prefixes = [prefix for source in sources if (prefix := _prefix(source)).name]
    manifests = [manifest_path(prefix) for prefix in prefixes]
    # Not by Path, which raises for names that no file system takes.
    if len(prefixes) < len(sources) or not all(map(os.path.isfile, manifests)):
        return None
    return [load_corpus(manifest) for manifest in manifests]


def _prefix(source: str) -> Path:
    path = Path(source)
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


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


MASTER_BYTES, MOMENTS_BYTES = 4, 8
"""Bytes of a parameter's float32 master and AdamW moments in a checkpoint."""


@dataclass(frozen=True)
class Plan:
    """The figures of a run, computed from its configuration."""

    config: RunConfig
    layout: Layout
    runtime_bytes: int
    """Memory that a rank takes beside its tensors."""
    epoch_steps: int | None = None
    """Steps that read the text `training.epochs` times; None: the text is not known yet, or sets no length."""

    @cached_property
    def budget(self) -> Budget:
        """The run's length. Raises ConfigError: the run is too short to be measured."""
        return plan_budget(self.config, known(lambda: self.parameters.total), self.epoch_steps)

    @cached_property
    def parameters(self) -> Parameters:
        """Parameters of the model. Like `flops` and `memory`: raises UndeclaredError if a variant lacks a formula."""
        return count_parameters(self.config.model)

    @cached_property
    def attended_tokens(self) -> int:
        """Tokens of a sequence or, where attention ends with documents, of a mean document: see the function."""
        within = self.config.data.attention_within_documents
        return attended_tokens(self.config, known_corpora(self.config.data) if within else None)

    @cached_property
    def flops(self) -> Flops:
        """FLOPs per token."""
        return flops_per_token(self.config.model, self.attended_tokens, self.config.training.recompute)

    @cached_property
    def memory(self) -> tuple[RankMemory, ...]:
        """Peak memory of a rank of each pipeline stage."""
        return memory_by_stage(self.config, self.layout, self.runtime_bytes)

    @property
    def length(self) -> str:
        """The run's optimizer steps in words; its epochs where these set the length and the text is not known yet."""
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

    def checkpoint_bytes(self) -> tuple[int, int]:
        """Return the bytes of the last checkpoint, which holds the weights alone, and of an earlier, whole one."""
        master = 0 if self.config.training.dtype == "fp32" else MASTER_BYTES
        weights = self.parameters.total * DTYPE_BYTES[self.config.training.dtype]
        return weights, weights + self.parameters.total * (MOMENTS_BYTES + master)

    def rank_memory_bytes(self) -> int:
        """Return the peak memory of the rank that needs most."""
        return max(stage.total for stage in self.memory)


def make_plan(config: RunConfig, layout: Layout, runtime_bytes: int) -> Plan:
    """Return the plan of a run on a layout; a rank takes `runtime_bytes` beside its tensors.

    Raises ConfigError: the run is too short to be measured, or cannot test itself by the project's task that it names.
    """
    if config.rl.task in TASKS:
        check_tested(config.rl, TASKS[config.rl.task])
    plan = Plan(config, layout, runtime_bytes)
    _ = plan.budget
    return plan


def plan_anywhere(config: RunConfig) -> Plan:
    """Return the plan of a run on any machine: with the fewest data-parallel replicas, and a CPU for `auto`.

    Raises ConfigError: the layout cannot work, or not on the device. Raises DeviceError: the device type is unknown.
    """
    device = planned_device(config)
    config = with_kernels(config, device)
    check_documents(config, device.type)
    return make_plan(config, Layout.of(config, devices=1, oversubscribe=True), device.runtime_bytes)


def planned_device(config: RunConfig) -> Device:
    """Return the device type that `plan_anywhere` plans for.

    Raises DeviceError: the configured device type is unknown.
    """
    return device_called("cpu" if config.device == "auto" else config.device)


def with_kernels(config: RunConfig, device: Hardware) -> RunConfig:
    """Return the configuration with `kernels.fused` set: by the device, unless the user has set it."""
    if config.kernels.fused is not None:
        return config
    return config.changed("kernels", fused=device.fuses())


def hidden(config: RunConfig) -> str | None:
    """Return why a run's sequences are too short to show what its attention does; None where they are not."""
    for name, view in config.model.views.items():
        reason = view.attention_variant.hidden_at(view, config.training.seq_len)
        if reason:
            written = view.attention.kind if name == OWN_LAYER else name
            return f"attention {written!r} does not show in this run: {config.model.keys_of_kind(name, reason)}"
    return None


def announcement(plan: Plan, device: Device, micro_batch_size: int) -> list[str]:
    """Return the lines that say what will run and where; `micro_batch_size` is the one that the user wrote."""
    layout, training, init = plan.layout, plan.config.training, plan.config.init
    lines = []
    if training.micro_batch_size != micro_batch_size:
        lines.append(
            f"micro-batch {training.micro_batch_size} instead of {micro_batch_size}: "
            f"{layout.dp} replicas share a global batch of {training.global_batch_size}"
        )
    parameters = known(lambda: f"{plan.parameters.total:,}") or "n/a"
    memory = shown(lambda: f"about {gigabytes(plan.rank_memory_bytes())} each")
    lines += [
        f"{plan.config.name}: {parameters} parameters, {plan.length} of "
        f"{plan.budget.tokens_per_step:,} tokens, {training.dtype}",
        f"{number_of(layout.world_size, 'rank')} (tp {layout.tp}, pp {layout.pp}, dp {layout.dp}) on "
        f"{device.names()[0]}; {memory}",
    ]
    if init.run is not None:
        begins = "continues" if init.branches else "begins with the weights of"
        lines.append(f"{begins} {init.run} after step {init.step} (SHA-256 {init.sha256})")
    warnings = device.dtype_warning(training.dtype), hidden(plan.config)
    lines += [f"warning: {warning}" for warning in warnings if warning]
    return lines + [line for line in (determinism(plan.config, device), plan.budget.extended) if line]


def memory_parts(memory: RankMemory) -> list[tuple[str, int]]:
    """Return the name and the bytes of each part of a rank's peak memory."""
    return [(field.name.replace("_", " "), getattr(memory, field.name)) for field in fields(memory)]


def gigabytes(size_bytes: float) -> str:
    """Format bytes in GB of 10^9 bytes."""
    return f"{size_bytes / 1e9:.2f} GB"
