"""Two nodes on one machine: two launchers whose real ranks meet over the network and reduce together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import free_port
from support.repository import ROOT

WORKER = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([2.0 ** dist.get_rank()])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on node {os.environ['NODE_RANK']}: {total.item():.0f}")
dist.destroy_process_group()
"""

NODE = """
import os, sys
from pathlib import Path
from efficientbench.config.schema import FaultsConfig
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.processes.launch import launch
from efficientbench.launchers.network.preflight import preflight
cluster = Cluster.from_environment(os.environ)
preflight(cluster, time_limit_s=60)
sys.exit(launch([sys.executable, sys.argv[1]], int(sys.argv[2]), cluster, Path(sys.argv[3]), FaultsConfig()))
"""


@pytest.mark.proof
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_the_ranks_of_two_nodes_reduce_together(tmp_path: Path, ranks_per_node: int) -> None:
    port = free_port()
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    nodes = []
    for node_rank in (1, 0):
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(node_rank)}
        command = [sys.executable, "-c", NODE, str(script), str(ranks_per_node), str(tmp_path / str(node_rank))]
        environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
        nodes.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    outputs = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs

    world = 2 * ranks_per_node
    printed = [outputs[1][0]] + [
        (tmp_path / str(rank // ranks_per_node) / f"rank_{rank}.out").read_text() for rank in range(1, world)
    ]
    for rank, text in enumerate(printed):
        assert f"rank {rank} of {world} on node {rank // ranks_per_node}: {2**world - 1}" in text
