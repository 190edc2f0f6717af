"""Write a checkpoint of full weights in one process, without ranks or a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from efficientbench.training import groups
from efficientbench.training.checkpoints.manifest import Manifest
from efficientbench.training.checkpoints.save import Saver
from efficientbench.training.checkpoints.shards import Shard

TIME_LIMIT_S = 86_400.0
"""The time in which all weights must be on the disk; there is no other rank to wait for."""


def write_weights(run_folder: Path, content: Manifest, weights: Mapping[str, torch.Tensor], backend: str) -> None:
    """Write a checkpoint as all ranks of a run would.

    Args:
        run_folder: the folder in which to make `checkpoint/step_<number>/`.
        content: the manifest; its list of files is filled here.
        weights: full tensors on the host by global name, a separate name for each expert.
        backend: the host's backend of torch.distributed.

    Raises:
        SaveError, OSError: see `Saver.save`.
    """
    shards = [
        Shard(f"model.{name}", tuple(weight.shape), (0,) * weight.dim(), weight) for name, weight in weights.items()
    ]
    with groups.one_rank(backend):
        Saver(run_folder, 1, TIME_LIMIT_S).save(content, shards, asynchronous=False)
