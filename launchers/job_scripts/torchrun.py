"""Writes the script that starts a run on every node by torchrun, which brings the nodes together and numbers them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.job_scripts.container import BARE, Surroundings
from efficientbench.launchers.job_scripts.shell_script import array, beginning, extras_of
from efficientbench.launchers.network.cluster_env import (
    DEFAULT_MASTER_PORT,
    RENDEZVOUS_TIMEOUT_NAME,
    TIME_LIMIT_S,
    TRAINING_PORT_NAME,
)

Rendezvous = Literal["c10d", "static"]

TEMPLATE = """\
#!/usr/bin/env bash
# Starts {name} on {nodes} by torchrun. Written by `efficientbench launch`; start it on every node, with
#
#   MASTER_ADDR  {master_meaning}
#   MASTER_PORT  its port for torchrun ({port} by default); the training takes the one above{node_rank_meaning}
#   LOCAL_ADDR   this node's address for the others, where its host name does not lead to it
: "${{MASTER_ADDR:?{master_meaning}}}"
export MASTER_PORT="${{MASTER_PORT:-{port}}}"
{beginning}
{training_port}="$(job_training_port)"
export {training_port}
# Its one process on a node is our launcher, which starts a rank for each device.
torchrun=(
    --nnodes={node_count}
    --nproc-per-node=1
    --max-restarts=0
    {rendezvous_id}
{rendezvous}
)
{arguments}
{container}job_torchrun "${{torchrun[@]}}" ${{LOCAL_ADDR:+--local-addr="$LOCAL_ADDR"}} -- efficientbench {command} "${{arguments[@]}}"
"""  # noqa: E501

MASTER = {
    "c10d": "the host that all nodes reach and one of them is",
    "static": "the host of node 0",
}
RENDEZVOUS = {
    "c10d": '    --rdzv-backend=c10d\n    --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"\n'
    '    --rdzv-conf="$(job_c10d {timeout_s})"',
    "static": '    --rdzv-backend=static\n    --master-addr="$MASTER_ADDR"\n    --master-port="$MASTER_PORT"\n'
    '    --node-rank="${{NODE_RANK:?number of this node, from 0}}"\n    --rdzv-conf=timeout={timeout_s}',
}


@dataclass(frozen=True)
class Meeting:
    """How torchrun's agents, one on every node, find each other."""

    rendezvous: Rendezvous = "c10d"
    run_id: str = ""
    """Distinguishes two trainings that meet at one port; empty: the run's name."""
    port: int = DEFAULT_MASTER_PORT
    timeout_s: int = int(TIME_LIMIT_S)

    def __post_init__(self) -> None:
        # The training takes the port above.
        if not 1 <= self.port <= 65534:
            raise LaunchError(f"--port: {self.port} and the port above it must lie between 1 and 65535")
        if self.timeout_s < 1:
            raise LaunchError(f"--rendezvous-timeout: {self.timeout_s} s, and nodes need at least 1 s")


def torchrun_script(
    name: str,
    arguments: Sequence[str],
    nodes: int,
    meeting: Meeting,
    folder: Path,
    command: str = "run",
    around: Surroundings = BARE,
) -> str:
    """Return the text of the script.

    Args:
        name: the run's name, of letters, digits, `.`, `_` and `-`.
        arguments: the arguments of the command.
        nodes: the number of nodes.
        meeting: where and how the nodes meet.
        folder: the folder in which relative paths among the arguments begin.
        command: the command of `efficientbench`.
        around: the modules and the container, in which torchrun itself runs.

    Raises:
        LaunchError: a container cannot mount a folder, or its engine is Slurm's.
    """
    if around.container and around.container.engine == "pyxis":
        raise LaunchError("--engine: pyxis works with Slurm alone: docker or apptainer")
    words = around.before_command(folder, extras_of(command))
    node_rank_meaning = "\n#   NODE_RANK    number of this node, from 0" if meeting.rendezvous == "static" else ""
    return TEMPLATE.format(
        name=name,
        nodes="1 node" if nodes == 1 else f"{nodes} nodes",
        master_meaning=MASTER[meeting.rendezvous],
        node_rank_meaning=node_rank_meaning,
        port=meeting.port,
        beginning=beginning(folder, around, {RENDEZVOUS_TIMEOUT_NAME: str(meeting.timeout_s)}, command),
        command=command,
        training_port=TRAINING_PORT_NAME,
        node_count=nodes,
        rendezvous_id=shlex.quote(f"--rdzv-id={meeting.run_id or name}"),
        rendezvous=RENDEZVOUS[meeting.rendezvous].format(timeout_s=meeting.timeout_s),
        arguments="\n".join([*([array("container", words)] if words else []), array("arguments", arguments)]),
        container='exec "${container[@]}" ' if words else "",
    )
