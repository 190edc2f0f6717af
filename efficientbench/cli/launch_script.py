"""Write the script that starts a run on other machines, and check the run now, before the script waits in a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from efficientbench.architecture.variant import UndeclaredError
from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout, fit_micro_batch
from efficientbench.config.load import resolve
from efficientbench.config.matrix import MATRIX
from efficientbench.config.schema import RunConfig
from efficientbench.config.tunings import named_tunings
from efficientbench.devices.registry import device_of_backend
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.launchers.job_scripts.container import BARE, Surroundings
from efficientbench.launchers.job_scripts.kubernetes import Pods, kubernetes_manifest
from efficientbench.launchers.job_scripts.slurm import slurm_script
from efficientbench.launchers.job_scripts.torchrun import Meeting, torchrun_script
from efficientbench.metrics.sensors.hardware import known_device
from efficientbench.planning.basis import basis
from efficientbench.planning.bill import Bill, bill, first_line
from efficientbench.planning.fitting import check_fits, check_preflight
from efficientbench.planning.plan import Plan, make_plan, with_kernels
from efficientbench.planning.step_time import project
from efficientbench.planning.text import length_line
from efficientbench.sweep.combinations import Combination
from efficientbench.sweep.comparable import made_comparable
from efficientbench.sweep.selection import (
    Request,
    chosen_combinations,
    chosen_tunings,
    names_tunings,
)

NVIDIA_RESOURCE = "nvidia.com/gpu"
ASCEND_RESOURCE = "huawei.com/Ascend910"
"""Names under which the vendors' device plugins of Kubernetes offer accelerators."""


@dataclass(frozen=True)
class Machines:
    """The nodes that each run gets."""

    nodes: int
    devices_per_node: int
    """Accelerators of a node; 0: none, so that ranks share its processor."""
    device: str | None = None
    """A row of hardware.yaml; None: it is not known what a node has, so that nothing is checked against it."""

    def laid_out(self, config: RunConfig) -> tuple[RunConfig, Layout]:
        """Return a run's configuration and layout here. Raises ConfigError: it has none."""
        shared = self.devices_per_node == 0
        if not shared:
            config = fit_micro_batch(config, self.devices_per_node, self.nodes)
        return config, Layout.of(config, self.devices_per_node or 1, self.nodes, oversubscribe=shared)

    def can_run(self, config: RunConfig) -> bool:
        """Return whether a run has a layout here."""
        try:
            self.laid_out(config)
        except ConfigError:
            return False
        return True


@dataclass(frozen=True)
class NamedRun:
    """One run of the script, as its command line names it."""

    command: ClassVar[str] = "run"
    """Of `efficientbench`."""
    name: str
    overrides: tuple[str, ...] = ()
    smoke: bool = False
    repeat: int | None = None
    matrix: Path = MATRIX

    @property
    def arguments(self) -> list[str]:
        """The command line after `efficientbench` and its command."""
        options = ["--smoke"] if self.smoke else []
        options += ["--repeat", str(self.repeat)] if self.repeat is not None else []
        # The script runs in the folder where it was written: relative paths stay valid.
        options += ["--matrix", str(self.matrix)] if self.matrix != MATRIX else []
        return [self.name, "dlc", *options, *self.overrides]

    def check(self, machines: Machines) -> str:
        """Return the name of the run's folder. Raises ConfigError: the configuration or layout cannot work there."""
        config, layout = self._laid_out(machines)
        if machines.device is not None:
            capacity = known_device(machines.device).memory_bytes
            if capacity is not None:
                check_fits(self._plan(config, layout, machines.device), int(capacity), shared=False, same_ranks=True)
        return config.name

    def bill(self, machines: Machines, device: str) -> Bill:
        """Return what the run takes on these machines, by projection."""
        plan = self.planned(machines, device)
        layout = plan.layout
        try:
            found = basis(device, plan.config, layout.world_size)
            rates = found.rates
            if layout.nodes > 1 and rates.between_nodes_bytes_s is None:
                return bill(
                    plan, None, f"the table of devices lacks what the network of a node of {rates.name} carries"
                )
            step_time_s = project(plan.config, layout, rates, found.reached.efficiency).step_time_s
            return bill(plan, step_time_s, "by projection", device=device)
        except UndeclaredError as error:
            return bill(plan, None, str(error))

    def planned(self, machines: Machines, device: str) -> Plan:
        """Return the run's plan on these machines."""
        return self._plan(*self._laid_out(machines), device)

    def _laid_out(self, machines: Machines) -> tuple[RunConfig, Layout]:
        config = resolve(self.name, self.smoke, self.overrides, self.matrix)
        return machines.laid_out(config)

    def _plan(self, config: RunConfig, layout: Layout, device: str) -> Plan:
        kind = device_of_backend(known_device(device).backend)
        return make_plan(with_kernels(config, kind), layout, kind.runtime_bytes)


@dataclass(frozen=True)
class NamedTuning(NamedRun):
    """One fine-tuning of the script."""

    command: ClassVar[str] = "finetune"

    def check(self, machines: Machines) -> str:
        config = resolve_tuning(self.name, self.smoke, self.overrides)
        config.accumulation(machines.nodes * (machines.devices_per_node or config.cpu_ranks))
        return config.name


@dataclass(frozen=True)
class NamedPreflight(NamedRun):
    """The preflight of one run of the script."""

    command: ClassVar[str] = "calibrate"

    @property
    def arguments(self) -> list[str]:
        return [*super().arguments, "--preflight"]

    def check(self, machines: Machines) -> str:
        name = super().check(machines)
        check_preflight(*self._laid_out(machines))
        return f"{name}_preflight"


def named_runs(
    request: Request, machines: Machines, name: str | None = None, preflight: bool = False
) -> list[NamedRun]:
    """Return every run that the request chooses for these machines.

    `name`: of this run or fine-tuning alone; `preflight`: of runs their preflight alone.

    Raises:
        ConfigError: a run's configuration is refused, or the request chooses nothing.
    """
    if name in named_tunings() or (name is None and names_tunings(request)):
        if preflight:
            raise ConfigError("--preflight: a fine-tuning has none: name a run, like gqa_1.5B")
        tunings = chosen_tunings(request, name)
        _refuse_combinations(tunings)
        return [NamedTuning(each.name, each.labelled, request.smoke, request.repeat) for each in tunings]
    found = made_comparable(request, chosen_combinations(request, name), machines.can_run)
    _refuse_combinations(found)
    if preflight and len(found) > 1:
        raise ConfigError(f"--preflight: name one run, whose ranks are compared, and not {len(found)}")
    kind = NamedPreflight if preflight else NamedRun
    return [kind(each.name, each.labelled, request.smoke, request.repeat, request.matrix) for each in found]


def budget_line(runs: Sequence[NamedRun], machines: Machines, price_per_hour: float | None) -> str | None:
    """Return the line of the whole budget; None where no device is named. Several runs have nodes of their own.

    Raises:
        ConfigError: a fine-tuning is among the runs.
        MetricsError: the table of devices lacks the device.
    """
    if machines.device is None:
        return None
    if any(isinstance(run, NamedTuning) for run in runs):
        raise ConfigError("--device: a fine-tuning is checked by `efficientbench finetune NAME --plan --device NAME`")
    # Repeats follow each other in the job of their run.
    bills = [each for run in runs for each in [run.bill(machines, machines.device)] * (run.repeat or 1)]
    line = first_line(bills, len(runs), machines.device, price_per_hour)
    return line if len(runs) > 1 else f"{line}\n{length_line(runs[0].planned(machines, machines.device))}"


def by_torchrun(runs: Sequence[NamedRun], machines: Machines, meeting: Meeting, around: Surroundings = BARE) -> str:
    """Return the text of a torchrun script, which every node runs. Raises ConfigError and LaunchError."""
    run = _only(runs, "torchrun")
    name = run.check(machines)
    return torchrun_script(name, run.arguments, machines.nodes, meeting, Path.cwd(), run.command, around)


def by_kubernetes(runs: Sequence[NamedRun], machines: Machines, meeting: Meeting, image: str, claim: str) -> str:
    """Return the manifest of a Kubernetes Job with a pod on every node. Raises ConfigError and LaunchError."""
    run = _only(runs, "a Job")
    resource = ASCEND_RESOURCE if "device=npu" in run.overrides else NVIDIA_RESOURCE
    pods = Pods(machines.nodes, machines.devices_per_node, resource, image, claim)
    command = ["efficientbench", run.command, *run.arguments]
    return kubernetes_manifest(run.check(machines), command, pods, meeting)


def by_slurm(runs: Sequence[NamedRun], machines: Machines, sbatch: Sequence[str], around: Surroundings = BARE) -> str:
    """Return the text of a script for sbatch; several runs are an array. Raises ConfigError and LaunchError."""
    names, problems = [], {}
    for run in runs:
        try:
            names.append(run.check(machines))
        except ConfigError as error:
            problems[" ".join([run.name, *run.overrides])] = str(error)
    _refuse(problems, len(runs))
    name = names[0] if len(names) == 1 else f"{len(names)}_runs"
    arguments = [run.arguments for run in runs]
    return slurm_script(
        name, arguments, machines.nodes, machines.devices_per_node, sbatch, Path.cwd(), runs[0].command, around
    )


def _refuse_combinations(found: Sequence[Combination[RunConfig]] | Sequence[Combination[FinetuneConfig]]) -> None:
    """Raise ConfigError where the configuration of any is refused."""
    problems = {" ".join([each.name, *each.overrides]): each.refused for each in found if each.refused}
    _refuse(problems, len(found))


def _refuse(problems: Mapping[str, str], runs: int) -> None:
    """Raise ConfigError with the problem of each run; a problem that all runs share is printed once."""
    reasons = list(dict.fromkeys(problems.values()))
    if len(problems) == runs and len(reasons) == 1:
        raise ConfigError(reasons[0])
    if problems:
        raise ConfigError([f"{run}: {reason}" for run, reason in problems.items()])


def _only(runs: Sequence[NamedRun], what: str) -> NamedRun:
    run, *others = runs
    if others:
        raise ConfigError(f"{what} starts one run, and {len(runs)} are named: --to slurm makes an array of them")
    return run
