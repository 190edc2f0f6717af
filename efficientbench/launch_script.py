"""The script that starts a run on other machines: what it asks for is checked here, before it waits in a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from efficientbench.config.errors import ConfigError
from efficientbench.config.layout import Layout, fit_micro_batch
from efficientbench.config.load import resolve
from launchers.slurm import slurm_script
from launchers.torchrun import Meeting, torchrun_script


@dataclass(frozen=True)
class Machines:
    """What each run is given."""

    nodes: int
    devices_per_node: int
    """Accelerators of a node; 0: none, so that ranks share its processor."""

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ConfigError(f"--nodes: {self.nodes} nodes are none; 1 or more")
        if self.devices_per_node < 0:
            raise ConfigError(f"--devices-per-node: {self.devices_per_node} is less than none")


@dataclass(frozen=True)
class NamedRun:
    """One run as the words of a command line give it."""

    name: str
    overrides: tuple[str, ...]
    smoke: bool
    repeat: int | None = None

    @property
    def words(self) -> list[str]:
        """What follows `efficientbench run`."""
        options = ["--smoke"] if self.smoke else []
        options += ["--repeat", str(self.repeat)] if self.repeat is not None else []
        return [self.name, "dlc", *options, *self.overrides]

    def check(self, machines: Machines) -> str:
        """The name of the run's folder. Raises ConfigError: a configuration or layout that cannot work there."""
        if self.repeat is not None and self.repeat < 1:
            raise ConfigError(f"--repeat: {self.repeat} runs are none; 1 or more")
        config = resolve(self.name, self.smoke, self.overrides)
        shared = machines.devices_per_node == 0
        if not shared:
            config = fit_micro_batch(config, machines.devices_per_node, machines.nodes)
        Layout.of(config, machines.devices_per_node or 1, machines.nodes, oversubscribe=shared)
        return config.name


def by_torchrun(run: NamedRun, machines: Machines, meeting: Meeting) -> str:
    """The text of a script for every node. Raises ConfigError and LaunchError."""
    return torchrun_script(run.check(machines), run.words, machines.nodes, meeting, Path.cwd())


def by_slurm(runs: Sequence[NamedRun], machines: Machines, sbatch: Sequence[str]) -> str:
    """The text of a script for sbatch; several runs are an array. Raises ConfigError and LaunchError."""
    names = [run.check(machines) for run in runs]
    name = names[0] if len(names) == 1 else f"{len(names)}_runs"
    words = [run.words for run in runs]
    return slurm_script(name, words, machines.nodes, machines.devices_per_node, sbatch, Path.cwd())
