"""Start the ranks of a job: of a training, a trial, a fine-tuning, a generation or an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.processes.failure import Failure
from efficientbench.launchers.processes.launch import launch
from efficientbench.launchers.processes.supervision import Limits
from efficientbench.launchers.processes.worker_process import module_command


def run_ranks(
    work: str,
    job_file: Path,
    ranks: int,
    log: Path,
    faults: Limits,
    cluster: Cluster | None = None,
    link: NodeLink | None = None,
    on_failure: Callable[[Failure], None] | None = None,
) -> int:
    """Run this node's ranks to their end; return the exit code of the whole run, as `launch` does.

    Args:
        work: the module whose `rank_work` is the ranks' work, see `run_rank`.
        job_file: the file of the job, which `rank_work` reads.
        ranks: the number of ranks on this node.
        log: the folder of the ranks' logs.
        faults: the time limits.
        cluster: the nodes; None: this machine alone.
        link: the link to the launchers of the other nodes; None: one node.
        on_failure: called with the failure where the exit code is not 0.

    Raises:
        LaunchError: a rank cannot be started, or the log folder cannot be made.
    """
    command = module_command("efficientbench.running", work, str(job_file))
    exit_code = launch(command, ranks, cluster, log, faults, on_failure, link)
    # A rank that is killed leaves the cursor hidden, as its progress bar had it.
    Console().show_cursor()
    return exit_code
