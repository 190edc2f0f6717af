"""The script that starts a run on other machines: what it asks for is checked here, before it waits in a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from efficientbench.config.errors import ConfigError
from efficientbench.config.layout import Layout, fit_micro_batch
from efficientbench.config.load import resolve
from efficientbench.config.matrix import MATRIX, load_matrix
from efficientbench.launchers.job_scripts.slurm import slurm_script
from efficientbench.launchers.job_scripts.torchrun import Meeting, torchrun_script
from efficientbench.sweep.axes import combinations, label_of, parse_axes
from efficientbench.sweep.select import select
from efficientbench.sweep.tasks import Request


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
    overrides: tuple[str, ...] = ()
    smoke: bool = False
    repeat: int | None = None
    matrix: Path = MATRIX

    @property
    def words(self) -> list[str]:
        """What follows `efficientbench run`."""
        options = ["--smoke"] if self.smoke else []
        options += ["--repeat", str(self.repeat)] if self.repeat is not None else []
        # Relative paths begin where the script was written.
        options += ["--matrix", str(self.matrix)] if self.matrix != MATRIX else []
        return [self.name, "dlc", *options, *self.overrides]

    def check(self, machines: Machines) -> str:
        """The name of the run's folder. Raises ConfigError: a configuration or layout that cannot work there."""
        if self.repeat is not None and self.repeat < 1:
            raise ConfigError(f"--repeat: {self.repeat} runs are none; 1 or more")
        config = resolve(self.name, self.smoke, self.overrides, self.matrix)
        shared = machines.devices_per_node == 0
        if not shared:
            config = fit_micro_batch(config, machines.devices_per_node, machines.nodes)
        Layout.of(config, machines.devices_per_node or 1, machines.nodes, oversubscribe=shared)
        return config.name


def named_runs(request: Request, name: str | None = None) -> list[NamedRun]:
    """Every run of a sweep, in its order and with its folders; `name`: of this run of the matrix alone.

    Raises ConfigError.
    """
    axes, matrix = parse_axes(request.axes), load_matrix(request.matrix)
    if request.repeat is not None and any(axis.key == "training.seed" for axis in axes):
        raise ConfigError("--set training.seed: --repeat gives each run its seeds; leave out one of the two")
    names = select(matrix, request.only, request.sizes) if name is None else [matrix.run(name)]
    chosen = [(run.name, values) for run in names for values in combinations(axes)]
    runs: dict[str, NamedRun] = {}
    problems: dict[str, str] = {}
    for run, values in chosen:
        given = (*request.overrides, *(f"{key}={value}" for key, value in values.items()))
        try:
            config = resolve(run, request.smoke, given, request.matrix)
        except ConfigError as error:
            problems[" ".join([run, *given])] = str(error)
            continue
        label = label_of(values, config, config.label)
        own = () if label is None else (f"label={label}",)
        # Two texts of one value (1e-3, 0.001) are one run.
        runs.setdefault(f"{run} {label}", NamedRun(run, (*given, *own), request.smoke, request.repeat, request.matrix))
    _refuse(problems, len(chosen))
    return list(runs.values())


def by_torchrun(runs: Sequence[NamedRun], machines: Machines, meeting: Meeting) -> str:
    """The text of a script for every node. Raises ConfigError and LaunchError."""
    run, *others = runs
    if others:
        raise ConfigError(f"torchrun starts one run, and {len(runs)} are named: --to slurm makes an array of them")
    return torchrun_script(run.check(machines), run.words, machines.nodes, meeting, Path.cwd())


def by_slurm(runs: Sequence[NamedRun], machines: Machines, sbatch: Sequence[str]) -> str:
    """The text of a script for sbatch; several runs are an array. Raises ConfigError and LaunchError."""
    names, problems = [], {}
    for run in runs:
        try:
            names.append(run.check(machines))
        except ConfigError as error:
            problems[" ".join([run.name, *run.overrides])] = str(error)
    _refuse(problems, len(runs))
    name = names[0] if len(names) == 1 else f"{len(names)}_runs"
    words = [run.words for run in runs]
    return slurm_script(name, words, machines.nodes, machines.devices_per_node, sbatch, Path.cwd())


def _refuse(problems: Mapping[str, str], runs: int) -> None:
    """Raises ConfigError with what is wrong, by the run; what is wrong with all of them is told once."""
    reasons = list(dict.fromkeys(problems.values()))
    if len(problems) == runs and len(reasons) == 1:
        raise ConfigError(reasons[0])
    if problems:
        raise ConfigError([f"{run}: {reason}" for run, reason in problems.items()])
