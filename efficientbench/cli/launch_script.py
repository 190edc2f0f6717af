"""Write the script that starts a run on other machines, and check the run now, before the script waits in a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from efficientbench.basics.errors import ConfigError
from efficientbench.config.layout import Layout, fit_micro_batch
from efficientbench.config.load import resolve
from efficientbench.config.matrix import MATRIX
from efficientbench.config.schema import RunConfig
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.load import named_tunings, resolve_tuning
from efficientbench.launchers.job_scripts.container import BARE, Surroundings
from efficientbench.launchers.job_scripts.kubernetes import Pods, kubernetes_manifest
from efficientbench.launchers.job_scripts.slurm import slurm_script
from efficientbench.launchers.job_scripts.torchrun import Meeting, torchrun_script
from efficientbench.sweep.combinations import Combination
from efficientbench.sweep.one_budget import made_comparable
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

    def check(self, config: RunConfig) -> None:
        """Check that a run's layout can work here. Raises ConfigError: it cannot."""
        shared = self.devices_per_node == 0
        if not shared:
            config = fit_micro_batch(config, self.devices_per_node, self.nodes)
        Layout.of(config, self.devices_per_node or 1, self.nodes, oversubscribe=shared)

    def can_run(self, config: RunConfig) -> bool:
        """Return whether a run's layout can work here."""
        try:
            self.check(config)
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
        config = resolve(self.name, self.smoke, self.overrides, self.matrix)
        machines.check(config)
        return config.name


@dataclass(frozen=True)
class NamedTuning(NamedRun):
    """One fine-tuning of the script."""

    command: ClassVar[str] = "finetune"

    def check(self, machines: Machines) -> str:
        config = resolve_tuning(self.name, self.smoke, self.overrides)
        try:
            config.accumulation(machines.nodes * (machines.devices_per_node or config.cpu_ranks))
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return config.name


def named_runs(request: Request, machines: Machines, name: str | None = None) -> list[NamedRun]:
    """Return every run that the request chooses for these machines; `name`: of this run or fine-tuning alone.

    Raises:
        ConfigError: a run's configuration is refused, or the request chooses nothing.
    """
    if name in named_tunings() or (name is None and names_tunings(request)):
        tunings = chosen_tunings(request, name)
        _refuse_combinations(tunings)
        return [NamedTuning(each.name, each.labelled, request.smoke, request.repeat) for each in tunings]
    found = made_comparable(request, chosen_combinations(request, name), machines.can_run)
    _refuse_combinations(found)
    return [NamedRun(each.name, each.labelled, request.smoke, request.repeat, request.matrix) for each in found]


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
