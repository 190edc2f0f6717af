"""Start one process for each local rank, and supervise them until the last has ended.

The launcher imports no torch, which saves its start-up time and memory. It gives the ranks the static rendezvous that
`torch.distributed` reads from the environment (`env://`), as torchrun would. It does not restart a failed rank: all
ranks end, and a further attempt resumes the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from efficientbench.basics.errors import LaunchError
from efficientbench.basics.readers import outlive_readers
from efficientbench.launchers.files import temporary_folder
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.interfaces import GLOO_INTERFACE, gloo_interface
from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.network.secret import SECRET_NAME
from efficientbench.launchers.processes.cleanup import LOG_VARIABLE
from efficientbench.launchers.processes.failure import Failure, note_stop_signals
from efficientbench.launchers.processes.supervision import Limits, Supervision, end_all
from efficientbench.launchers.processes.worker_process import WorkerProcess


def launch(
    worker_argv: list[str],
    local_ranks: int,
    cluster: Cluster | None,
    log_folder: Path,
    limits: Limits,
    on_failure: Callable[[Failure], None] | None = None,
    link: NodeLink | None = None,
) -> int:
    """Run a command once for each of this node's ranks, and return the exit code of the run.

    Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, NNODES, MASTER_ADDR and MASTER_PORT in
    its environment. Rank 0 writes to this process's stdout and stderr, the others to `log_folder/rank_<n>.out`.

    The launcher passes a stop signal on to the ranks once, as SIGTERM. It kills what still runs after
    `limits.stop_grace_s` seconds, or at a further Ctrl-C (`ends_at_once`). Call it from the main thread, since it
    handles signals.

    Args:
        worker_argv: the command.
        local_ranks: the number of ranks on this node.
        cluster: the nodes; None: this machine alone.
        log_folder: the folder for the ranks' output.
        limits: the ranks' time limits.
        on_failure: called with the failure where the exit code is not 0.
        link: the link to the launchers of the other nodes, by which all nodes end together; None: one node.

    Returns:
        0 when all ranks ended well, 2 for a user's mistake that a rank reported, 130 after Ctrl-C, 143 after SIGTERM,
        129 after SIGHUP, else 1. The first rank that failed and its reason are printed to stderr.

    Raises:
        LaunchError: a rank cannot be started, or the log folder cannot be made.
    """
    if local_ranks < 1:
        raise LaunchError(f"{local_ranks} ranks on this node: at least 1 is needed")
    try:
        log_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"{log_folder} cannot be made: {error.strerror}") from error
    with contextlib.ExitStack() as stack:
        if cluster is None or cluster.nodes == 1:
            cluster = stack.enter_context(_this_machine())
        signals = stack.enter_context(received_signals())
        error_folder = stack.enter_context(temporary_folder())
        workers: list[WorkerProcess] = []
        # Whatever happens here, no rank stays behind.
        stack.callback(end_all, workers)
        for local_rank in range(local_ranks):
            workers.append(_start(worker_argv, local_rank, local_ranks, cluster, log_folder, error_folder))
        link = link or NodeLink(cluster.node_rank, 1, {})
        failure = Supervision(workers, signals, limits, link, log_folder).run()
    if failure is None:
        return 0
    if on_failure is not None:
        on_failure(failure)
    return failure.exit_code


def rank_environment(cluster: Cluster, local_rank: int, local_ranks: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with the variables of `torch.distributed` and the worker; all nodes run equally many ranks."""
    environment = {
        # In torchrun's own store a second run of one launcher would read what the first one left. The secret is the
        # launchers' alone.
        **{name: value for name, value in base.items() if name not in ("TORCHELASTIC_USE_AGENT_STORE", SECRET_NAME)},
        "RANK": str(cluster.node_rank * local_ranks + local_rank),
        "WORLD_SIZE": str(cluster.nodes * local_ranks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_ranks),
        "NODE_RANK": str(cluster.node_rank),
        "NNODES": str(cluster.nodes),
        "MASTER_ADDR": cluster.master_address,
        "MASTER_PORT": str(cluster.master_port),
        "PYTHONSAFEPATH": "1",
    }
    if (interface := gloo_interface(base, cluster)) is not None:
        environment[GLOO_INTERFACE] = interface
    if local_ranks > 1:
        # Else every rank would take a thread for each of the machine's cores.
        cores = len(os.sched_getaffinity(0))
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // local_ranks)))
    return environment


def _start(
    argv: list[str], local_rank: int, local_ranks: int, cluster: Cluster, log_folder: Path, error_folder: Path
) -> WorkerProcess:
    environment = rank_environment(cluster, local_rank, local_ranks, os.environ)
    environment[LOG_VARIABLE] = str(log_folder.resolve())
    rank = int(environment["RANK"])
    output_file = None if rank == 0 else log_folder / f"rank_{rank}.out"
    try:
        return WorkerProcess(rank, argv, environment, error_folder / f"rank_{rank}.json", output_file)
    except OSError as error:
        raise LaunchError(f"rank {rank} cannot be started: {error}") from error


@contextlib.contextmanager
def received_signals() -> Iterator[list[int]]:
    """Collect the stop signals that this process receives, in order.

    Signals that this process was started to ignore stay ignored. Output to a terminal or a pipe that has been closed
    is dropped.
    """
    outlive_readers(pipes=True)
    received, previous = note_stop_signals()
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _this_machine() -> Iterator[Cluster]:
    """Yield a cluster of this machine alone, whose port no other run takes until the ranks have ended.

    Nobody else has to find the ranks: they do not meet at MASTER_ADDR, which strangers may reach, nor at MASTER_PORT,
    which may be taken. The socket is bound and does not listen: with SO_REUSEADDR on both sides, rank 0's store can
    still listen there.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield Cluster(nodes=1, node_rank=0, master_address="127.0.0.1", master_port=holder.getsockname()[1])
