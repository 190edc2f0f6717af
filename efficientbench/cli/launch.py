"""The command `efficientbench launch`."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efficientbench.cli.options import (
    MODES,
    RUN,
    Arguments,
    Axes,
    Data,
    MatrixFile,
    Only,
    PricePerHour,
    Sizes,
    Smoke,
    Tokenizer,
    count,
    names,
    of_depth,
    option,
    overrides_of,
    repeats,
    switch,
)

if TYPE_CHECKING:
    from efficientbench.cli.launch_script import Machines, NamedRun
    from efficientbench.launchers.job_scripts.container import Surroundings
    from efficientbench.launchers.job_scripts.torchrun import Meeting


class Starter(str, Enum):
    """Programs that start the nodes of a run."""

    TORCHRUN = "torchrun"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    K8S = "k8s"
    """Kubernetes by its short name."""


class Engine(str, Enum):
    """Programs that start containers."""

    PYXIS = "pyxis"
    APPTAINER = "apptainer"
    DOCKER = "docker"


class Preflight(str, Enum):
    """What a script does of the preflight."""

    ONLY = "only"


class Rendezvous(str, Enum):
    """Ways in which torchrun's agents find each other."""

    C10D = "c10d"
    STATIC = "static"


Sbatch = Annotated[list[str] | None, option("KEY=VALUE", "slurm: an option of sbatch, like partition=gpu; repeatable")]
Port = Annotated[
    int, typer.Option(help="torchrun: port at the first node where MASTER_PORT is unset; and the next one")
]
Image = Annotated[str | None, option("IMAGE", "run in a container: REGISTRY/NAME:TAG, or a .sif or .sqsh file")]
ContainerEngine = Annotated[
    Engine | None, typer.Option(help="of the container; Slurm: pyxis, torchrun: docker where it is not given")
]
Mounts = Annotated[
    list[Path] | None,
    typer.Option(
        "--mount", metavar="FOLDER", help="folder that the container sees too, like that of the data; repeatable"
    ),
]
Modules = Annotated[
    list[str] | None, typer.Option("--module", metavar="NAME", help="module load NAME on the nodes first; repeatable")
]


def launch(
    name: Annotated[str | None, RUN] = None,
    arguments: Arguments = None,
    *,
    to: Annotated[Starter, typer.Option(help="who starts the nodes")],
    only: Only = "",
    sizes: Sizes = "",
    axes: Axes = None,
    smoke: Smoke = False,
    data: Data = None,
    tokenizer: Tokenizer = None,
    matrix: MatrixFile = None,
    nodes: Annotated[int, count("nodes that each run takes")] = 1,
    devices_per_node: Annotated[
        int,
        typer.Option(
            "--devices-per-node", "--gpus", metavar="N", min=0, help="accelerators of a node; 0: its processors train"
        ),
    ] = 8,
    device: Annotated[
        str | None,
        option("NAME", "a row of hardware.yaml, like 'H100 SXM': refuse what does not fit, and say the cost"),
    ] = None,
    price_per_hour: PricePerHour = None,
    output: Annotated[str, option("FILE", "where the script goes; -: to stdout")] = "-",
    preflight: Annotated[
        Preflight | None, typer.Option(help="only: no training, only what a run on several nodes measures before it")
    ] = None,
    dry_run: Annotated[bool, switch("--dry-run", "check all, and print the cost: no script")] = False,
    repeat: Annotated[int | None, repeats("as of `run`")] = None,
    sbatch: Sbatch = None,
    rendezvous: Annotated[Rendezvous, typer.Option(help="torchrun: how its agents meet")] = Rendezvous.C10D,
    rendezvous_id: Annotated[str, option("ID", "torchrun: tells apart who meets at one port")] = "",
    rendezvous_timeout: Annotated[int, option("SECONDS", "torchrun: how long nodes wait for the others")] = 600,
    port: Port = 29500,
    container: Image = None,
    engine: ContainerEngine = None,
    mounts: Mounts = None,
    modules: Modules = None,
    claim: Annotated[str, option("NAME", "kubernetes: volume claim for output and data, at /workspace")] = "",
) -> None:
    """Write what starts a run on other nodes: a script for torchrun or Slurm's sbatch, or a Job of Kubernetes.

    Several runs (--only, --sizes, --set, as of `sweep`) become an array of Slurm's, each with nodes of its own.
    """
    from efficientbench.basics.counted import number_of
    from efficientbench.cli.launch_script import Machines, budget_line, named_runs
    from efficientbench.config.matrix import MATRIX
    from efficientbench.launchers.job_scripts.torchrun import Meeting
    from efficientbench.sweep.selection import Request

    given = list(arguments or [])
    if name is not None and "=" in name:
        given, name = [name, *given], None
    if name is not None:
        name, given = of_depth(name, given)
    if surplus := [argument for argument in given if argument in MODES]:
        raise typer.BadParameter(f"{surplus[0]}: a script for nodes runs in the mode dlc; leave the word out")
    if (name is None) == (not only and not sizes):
        raise typer.BadParameter("launch needs either the name of a run, like gqa_1.5B, or --only and --sizes")
    request = Request(
        matrix=MATRIX if matrix is None else matrix,
        only=names(only),
        sizes=names(sizes),
        axes=tuple(axes or ()),
        overrides=tuple(overrides_of(given, data, tokenizer)),
        smoke=smoke,
        repeat=repeat,
    )
    to = Starter.KUBERNETES if to is Starter.K8S else to
    meeting = Meeting(rendezvous.value, rendezvous_id, port, rendezvous_timeout)
    around = _surroundings(to, container, engine, mounts or [], modules or [])
    if device is not None and devices_per_node == 0:
        raise typer.BadParameter("--device goes with --devices-per-node N: with 0 the processors of a node train")
    if price_per_hour is not None and device is None:
        raise typer.BadParameter("--price-per-hour goes with --device NAME, by which the hours are projected")
    if preflight is not None and (price_per_hour is not None or repeat is not None):
        raise typer.BadParameter("--price-per-hour and --repeat are of a training: --preflight only trains nothing")
    machines = Machines(nodes, devices_per_node, device)
    runs = named_runs(request, machines, name, preflight is not None)
    script = _script(to, runs, machines, meeting, sbatch or [], around, claim)
    if preflight is None and (line := budget_line(runs, machines, price_per_hour)):
        # The script may go to stdout.
        typer.echo(line, err=True)
    if dry_run:
        typer.echo(f"{to.value}: {number_of(len(runs), 'run')} on {number_of(nodes, 'node')} each; no script written")
    else:
        _deliver(script, output, to is not Starter.KUBERNETES)


def _surroundings(
    to: Starter, image: str | None, engine: Engine | None, mounts: list[Path], modules: list[str]
) -> Surroundings:
    """Return modules and container as they are asked for. Raises LaunchError: they contradict each other."""
    from efficientbench.basics.errors import LaunchError
    from efficientbench.launchers.job_scripts.container import Container, Surroundings

    if image is None:
        if engine is not None or mounts:
            raise LaunchError("--engine and --mount need a container: --container IMAGE")
        return Surroundings(tuple(modules))
    if to is Starter.KUBERNETES and (engine is not None or mounts):
        raise LaunchError("--engine and --mount work with torchrun and Slurm: Kubernetes has its own, and --claim")
    chosen = engine or (Engine.PYXIS if to is Starter.SLURM else Engine.DOCKER)
    folders = tuple(Path(os.path.expanduser(each)).absolute() for each in mounts)
    return Surroundings(tuple(modules), Container(image, chosen.value, folders))


def _script(
    to: Starter,
    runs: list[NamedRun],
    machines: Machines,
    meeting: Meeting,
    sbatch: list[str],
    around: Surroundings,
    claim: str,
) -> str:
    """Return the script's text. Raises LaunchError: an option is of another starter."""
    from efficientbench.basics.errors import LaunchError
    from efficientbench.cli.launch_script import by_kubernetes, by_slurm, by_torchrun
    from efficientbench.launchers.job_scripts.torchrun import Meeting

    if sbatch and to is not Starter.SLURM:
        raise LaunchError("--sbatch works with Slurm alone: --to slurm, or leave it out")
    if claim and to is not Starter.KUBERNETES:
        raise LaunchError("--claim works with Kubernetes alone: --to kubernetes, or leave it out")
    if to is Starter.TORCHRUN:
        return by_torchrun(runs, machines, meeting, around)
    if to is Starter.SLURM:
        if meeting != Meeting():
            raise LaunchError("--rendezvous, --rendezvous-id, --rendezvous-timeout and --port work with torchrun alone")
        return by_slurm(runs, machines, sbatch, around)
    if around.container is None or not claim:
        raise LaunchError("--to kubernetes needs --container IMAGE and --claim NAME of a volume that all nodes mount")
    if around.modules or (meeting.rendezvous, meeting.run_id) != ("c10d", ""):
        raise LaunchError("--module, --rendezvous and --rendezvous-id are not of Kubernetes: leave them out")
    return by_kubernetes(runs, machines, meeting, around.container.image, claim)


def _deliver(text: str, output: str, is_script: bool) -> None:
    """Check a script, and print or write what was made. Raises LaunchError."""
    from efficientbench.launchers.job_scripts.shell_script import check, write

    if is_script:
        check(text)
    if output == "-":
        # A path in the script may have bytes that are not UTF-8.
        typer.echo(os.fsencode(text), nl=False)
    else:
        write(text, Path(output), executable=is_script)
