"""Verify a checkpoint on all ranks together."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from efficientbench.basics.errors import CheckpointError
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.training.checkpoints.manifest import Manifest, verify


def verify_together(folder: Path) -> Manifest:
    """Verify some of the files on each rank; raise on all ranks, before any rank reads a weight.

    Raises CheckpointError if a file is damaged; the message names it.
    """
    problem, manifest = None, None
    try:
        manifest = verify(folder, dist.get_rank(), dist.get_world_size())
    except CheckpointError as error:
        problem = str(error)
    for each in gather(problem, str | None):
        if each is not None:
            raise CheckpointError(each)
    assert manifest is not None
    return manifest
