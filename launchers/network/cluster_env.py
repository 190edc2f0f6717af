"""Reads the nodes of a run from the environment variables that the cluster's scheduler sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.network.secret import SECRET_NAME, SHORTEST

DEFAULT_MASTER_PORT = 29500
TIME_LIMIT_S = 600.0
"""Default limit, in seconds: nodes set themselves up before they meet, and schedulers start them at different times."""

RENDEZVOUS_TIMEOUT_NAME = "EFFICIENTBENCH_RENDEZVOUS_TIMEOUT_S"
TRAINING_PORT_NAME = "EFFICIENTBENCH_TRAINING_PORT"
TORCHRUN_NAME = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun sets in every process it starts."""


@dataclass(frozen=True)
class Cluster:
    """Several nodes that run one training together; node 0 is the master, where the others meet."""

    nodes: int
    node_rank: int
    master_address: str
    master_port: int = DEFAULT_MASTER_PORT
    rendezvous_timeout_s: float = TIME_LIMIT_S
    """Seconds that a node waits for the others before the run begins."""
    secret: bytes = field(default=b"", repr=False)
    """The secret that all nodes share; empty: anybody may join them."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Cluster:
        """Read MASTER_ADDR, MASTER_PORT, WORLD_SIZE (number of nodes) and RANK (this node's rank).

        PAI-DLC gives them these meanings; NNODES and NODE_RANK serve as well. Below torchrun, which has to start one
        process on each node, torchrun's own variables count, and the port is EFFICIENTBENCH_TRAINING_PORT (29501 by
        default), since torchrun itself listens at MASTER_PORT. EFFICIENTBENCH_RENDEZVOUS_TIMEOUT_S and
        EFFICIENTBENCH_SECRET count in both cases.

        Raises LaunchError: variables are missing or wrong; the message names all of them.
        """
        problems: list[str] = []
        if environ.get(TORCHRUN_NAME):
            environ = _from_torchrun(environ, problems)
        timeout_s = _timeout_s(environ, problems)
        master_address = environ.get("MASTER_ADDR", "").strip()
        if not master_address:
            problems.append("MASTER_ADDR is not set: it names the host of node 0")
        elif not _may_be_host(master_address):
            problems.append(f"MASTER_ADDR is {master_address[:80]!r}: no host can have this name")
        nodes = _integer(environ, ("WORLD_SIZE", "NNODES"), "the number of nodes", problems)
        node_rank = _integer(environ, ("RANK", "NODE_RANK"), "this node's rank", problems)
        master_port: int | None = DEFAULT_MASTER_PORT
        if environ.get("MASTER_PORT", "").strip():
            master_port = _integer(environ, ("MASTER_PORT",), "node 0's port", problems)

        if nodes is not None and nodes < 1:
            problems.append(f"WORLD_SIZE is {nodes}: the number of nodes is at least 1")
        elif nodes is not None and node_rank is not None and not 0 <= node_rank < nodes:
            problems.append(f"RANK is {node_rank}: must be between 0 and {nodes - 1} with {nodes} nodes")
        if master_port is not None and not 1 <= master_port <= 65535:
            problems.append(f"MASTER_PORT is {master_port}: must be between 1 and 65535")
        secret = environ.get(SECRET_NAME, "").strip()
        if 0 < len(secret) < SHORTEST:
            problems.append(
                f"{SECRET_NAME} has {len(secret)} characters: {SHORTEST} or more keep it from being guessed"
            )
        if problems or nodes is None or node_rank is None or master_port is None:
            raise LaunchError("several nodes (dlc) are described by environment variables: " + "; ".join(problems))
        return cls(nodes, node_rank, master_address, master_port, timeout_s, secret.encode())


def _from_torchrun(environ: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    """Return the variables of `from_environment` with the values that torchrun gives its process on this node."""
    started = environ.get("LOCAL_WORLD_SIZE", "1")
    if started != "1":
        problems.append(
            f"torchrun started {started} processes on this node: give it --nproc-per-node=1, since efficientbench "
            "itself starts a rank for each device"
        )
    return {
        "MASTER_ADDR": environ.get("MASTER_ADDR", ""),
        "MASTER_PORT": environ.get(TRAINING_PORT_NAME, str(DEFAULT_MASTER_PORT + 1)),
        "WORLD_SIZE": environ.get("GROUP_WORLD_SIZE", ""),
        "RANK": environ.get("GROUP_RANK", ""),
        RENDEZVOUS_TIMEOUT_NAME: environ.get(RENDEZVOUS_TIMEOUT_NAME, ""),
        SECRET_NAME: environ.get(SECRET_NAME, ""),
    }


def _may_be_host(name: str) -> bool:
    try:
        # Every look-up of a name begins with this encoding, whose error is of its own kind.
        name.encode("idna")
    except UnicodeError:
        return False
    return True


def _timeout_s(environ: Mapping[str, str], problems: list[str]) -> float:
    text = environ.get(RENDEZVOUS_TIMEOUT_NAME, "").strip() or str(TIME_LIMIT_S)
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < math.inf:
        problems.append(f"{RENDEZVOUS_TIMEOUT_NAME} is {text!r}: a number of seconds above 0")
    return timeout_s


def _integer(environ: Mapping[str, str], names: tuple[str, ...], meaning: str, problems: list[str]) -> int | None:
    """Return the value that these variables agree on; None, with the reason added to `problems`, where they do not."""
    given = {name: environ[name].strip() for name in names if environ.get(name, "").strip()}
    if not given:
        problems.append(f"{' or '.join(names)} is not set: {meaning}")
        return None
    values = {}
    for name, text in given.items():
        try:
            values[name] = int(text)
        except ValueError:
            problems.append(f"{name} is {text!r}: {meaning} is a whole number")
            return None
    if len(set(values.values())) > 1:
        settings = " and ".join(f"{name}={value}" for name, value in values.items())
        problems.append(f"{settings} contradict each other: both are {meaning}")
        return None
    return next(iter(values.values()))
