"""How process groups are made."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.command_line import environment

BOUND = """
from efficientbench.devices.cpu import CPU
CPU().prepare(0)
import torch, torch.distributed as dist
from efficientbench.config.parallel import ParallelConfig
from efficientbench.training import groups
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
world = dist.distributed_c10d._get_default_group()
world.bound_device_id = torch.device("cpu", 0)
bound, new_group = [], dist.new_group
def noted(*ranks, **options):
    bound.append(world.bound_device_id)
    return new_group(*ranks, **options)
dist.new_group = noted
with groups.model_parallel(ParallelConfig(), seed=0):
    print(len(bound) > 10, set(bound), world.bound_device_id)
"""


@pytest.mark.proof
def test_megatrons_groups_are_not_connected_before_they_are_used() -> None:
    """On an H200, communicators of groups that a world bound to its device made took 6.9 GB, used or not."""
    done = subprocess.run([sys.executable, "-c", BOUND], env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["True {None} cpu:0"], done.stderr
