"""The command `efficientbench launch`."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

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


class Starter(str, Enum):
    """Programs that start the nodes of a run."""

    TORCHRUN = "torchrun"
    SLURM = "slurm"


class Rendezvous(str, Enum):
    """Ways in which torchrun's agents find each other."""

    C10D = "c10d"
    STATIC = "static"


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
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="nodes that each run takes")] = 1,
    devices_per_node: Annotated[
        int,
        typer.Option("--devices-per-node", metavar="N", min=0, help="accelerators of a node; 0: its processors train"),
    ] = 8,
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="where the script goes; -: to stdout")] = "-",
    repeat: Annotated[int | None, typer.Option("--repeat", metavar="N", min=1, help="as of `run`")] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            "--sbatch", metavar="KEY=VALUE", help="slurm: an option of sbatch, like partition=gpu; repeatable"
        ),
    ] = None,
    rendezvous: Annotated[
        Rendezvous, typer.Option("--rendezvous", help="torchrun: how its agents meet")
    ] = Rendezvous.C10D,
    rendezvous_id: Annotated[
        str, typer.Option("--rendezvous-id", metavar="ID", help="torchrun: tells apart who meets at one port")
    ] = "",
    rendezvous_timeout: Annotated[
        int,
        typer.Option("--rendezvous-timeout", metavar="SECONDS", help="torchrun: how long nodes wait for the others"),
    ] = 600,
    port: Annotated[
        int,
        typer.Option("--port", help="torchrun: port at the first node where MASTER_PORT is unset; and the next one"),
    ] = 29500,
) -> None:
    """Write the script that starts a run on other nodes: for torchrun on each of them, or for Slurm's sbatch.

    Several runs (--only, --sizes, --set, as of `sweep`) become an array of Slurm's, each with nodes of its own.
    """
    from efficientbench.cli.launch_script import Machines, by_slurm, by_torchrun, named_runs
    from efficientbench.config.matrix import MATRIX
    from efficientbench.launchers.errors import LaunchError
    from efficientbench.launchers.job_scripts.shell_script import checked, write
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
    machines = Machines(nodes, devices_per_node)
    meeting = Meeting(rendezvous.value, rendezvous_id, port, rendezvous_timeout)
    if to is Starter.TORCHRUN and sbatch:
        raise LaunchError("--sbatch is of Slurm: --to slurm, or leave it out")
    if to is Starter.SLURM and meeting != Meeting():
        raise LaunchError("--rendezvous, --rendezvous-id, --rendezvous-timeout and --port are of torchrun")
    if to is Starter.TORCHRUN:
        script = by_torchrun(named_runs(request, name), machines, meeting)
    else:
        script = by_slurm(named_runs(request, name), machines, sbatch or [])
    if remark := checked(script):
        print(f"warning: {remark}", file=sys.stderr)
    if output == "-":
        # A path in the script may have bytes that are not UTF-8.
        typer.echo(os.fsencode(script), nl=False)
    else:
        write(script, Path(output))
