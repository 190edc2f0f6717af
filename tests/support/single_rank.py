"""A world of one rank in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist

from efficientbench.config.parallel import ParallelConfig
from efficientbench.devices.base import Device
from efficientbench.devices.cpu import CPU


@contextlib.contextmanager
def world_of_one_rank(device: Device | None = None, seed: int = 0) -> Iterator[torch.device]:
    """Prepare a device (the CPU) and make a world of one rank on it, with megatron's process groups."""
    device = device or CPU()
    prepared = device.prepare(0)
    from efficientbench.training import groups

    dist.init_process_group(device.backend, store=dist.HashStore(), rank=0, world_size=1)
    with groups.model_parallel(ParallelConfig(), seed):
        yield prepared
    dist.destroy_process_group()
