"""Verify a checkpoint on all ranks together."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from efficientbench.basics.errors import CheckpointError
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.training.checkpoints.hashing import Report
from efficientbench.training.checkpoints.manifest import Manifest, verify


def verify_together(folder: Path, report: Report | None = None) -> Manifest:
    """Verify some of the files on each rank, and raise on all ranks before any of them reads a weight.

    `report` is told what this rank hashes.

    Raises CheckpointError: a file is damaged; the message names it.
    """
    problem, manifest = None, None
    try:
        manifest = verify(folder, dist.get_rank(), dist.get_world_size(), report=report)
    except CheckpointError as error:
        problem = str(error)
    for each in gather(problem, str | None):
        if each is not None:
            raise CheckpointError(each)
    assert manifest is not None
    return manifest
