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
    Sizes,
    Smoke,
    Tokenizer,
    names,
    overrides_of,
)

if TYPE_CHECKING:
    from efficientbench.cli.launch_script import Machines, NamedRun
    from efficientbench.launchers.job_scripts.torchrun import Meeting


class Starter(str, Enum):
    """Programs that start the nodes of a run."""

    TORCHRUN = "torchrun"
    SLURM = "slurm"


class Rendezvous(str, Enum):
    """Ways in which torchrun's agents find each other."""

    C10D = "c10d"
    STATIC = "static"


Nodes = Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="nodes that each run takes")]
DevicesPerNode = Annotated[
    int, typer.Option("--devices-per-node", metavar="N", min=0, help="accelerators of a node; 0: its processors train")
]
Sbatch = Annotated[
    list[str] | None,
    typer.Option("--sbatch", metavar="KEY=VALUE", help="slurm: an option of sbatch, like partition=gpu; repeatable"),
]
RendezvousId = Annotated[
    str, typer.Option("--rendezvous-id", metavar="ID", help="torchrun: tells apart who meets at one port")
]
RendezvousTimeout = Annotated[
    int, typer.Option("--rendezvous-timeout", metavar="SECONDS", help="torchrun: how long nodes wait for the others")
]
Port = Annotated[
    int, typer.Option("--port", help="torchrun: port at the first node where MASTER_PORT is unset; and the next one")
]


def launch(
    name: Annotated[str | None, RUN] = None,
    arguments: Arguments = None,
    *,
    to: Annotated[Starter, typer.Option("--to", help="who starts the nodes")],
    only: Only = "",
    sizes: Sizes = "",
    axes: Axes = None,
    smoke: Smoke = False,
    data: Data = None,
    tokenizer: Tokenizer = None,
    matrix: MatrixFile = None,
    nodes: Nodes = 1,
    devices_per_node: DevicesPerNode = 8,
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="where the script goes; -: to stdout")] = "-",
    repeat: Annotated[int | None, typer.Option("--repeat", metavar="N", min=1, help="as of `run`")] = None,
    sbatch: Sbatch = None,
    rendezvous: Annotated[
        Rendezvous, typer.Option("--rendezvous", help="torchrun: how its agents meet")
    ] = Rendezvous.C10D,
    rendezvous_id: RendezvousId = "",
    rendezvous_timeout: RendezvousTimeout = 600,
    port: Port = 29500,
) -> None:
    """Write the script that starts a run on other nodes: for torchrun on each of them, or for Slurm's sbatch.

    Several runs (--only, --sizes, --set, as of `sweep`) become an array of Slurm's, each with nodes of its own.
    """
    from efficientbench.cli.launch_script import Machines, named_runs
    from efficientbench.config.matrix import MATRIX
    from efficientbench.launchers.job_scripts.shell_script import check, write
    from efficientbench.launchers.job_scripts.torchrun import Meeting
    from efficientbench.sweep.selection import Request

    given = list(arguments or [])
    if name is not None and "=" in name:
        given, name = [name, *given], None
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
    meeting = Meeting(rendezvous.value, rendezvous_id, port, rendezvous_timeout)
    script = _script(to, named_runs(request, name), Machines(nodes, devices_per_node), meeting, sbatch or [])
    check(script)
    if output == "-":
        # A path in the script may have bytes that are not UTF-8.
        typer.echo(os.fsencode(script), nl=False)
    else:
        write(script, Path(output))


def _script(to: Starter, runs: list[NamedRun], machines: Machines, meeting: Meeting, sbatch: list[str]) -> str:
    """Return the script's text. Raises LaunchError: an option is of the other starter."""
    from efficientbench.cli.launch_script import by_slurm, by_torchrun
    from efficientbench.launchers.errors import LaunchError
    from efficientbench.launchers.job_scripts.torchrun import Meeting

    if to is Starter.TORCHRUN:
        if sbatch:
            raise LaunchError("--sbatch is of Slurm: --to slurm, or leave it out")
        return by_torchrun(runs, machines, meeting)
    if meeting != Meeting():
        raise LaunchError("--rendezvous, --rendezvous-id, --rendezvous-timeout and --port are of torchrun")
    return by_slurm(runs, machines, sbatch)
