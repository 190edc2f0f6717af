"""Megatron's sample indices in a cache on disk, which runs share.

Megatron would read them by `numpy.load(allow_pickle=True)`: whoever can write to the cache would have code of his own
run in every run that reads it, and a damaged file would end the run, or train on other samples. Here Megatron builds
indices and never sees the cache: they are read as plain arrays alone, after their checksums.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch.distributed as dist

from efficientbench.data_tools.cached_files import cached_file, is_intact
from efficientbench.data_tools.files import disk_errors_explained
from efficientbench.training.errors import TrainingError

logger = logging.getLogger(__name__)


def load_or_build(paths: Sequence[Path], build: Callable[[], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """Return the arrays at `paths`, memory-mapped. On rank 0, build and write all of them if one is not usable.

    The other ranks call this when rank 0 has finished.

    Raises:
        TrainingError: another rank cannot use what rank 0 has written.
        DataError: the disk is full, or the cache cannot be written.
    """
    found = [_load(path) for path in paths]
    loaded = tuple(array for array in found if array is not None)
    if len(loaded) == len(paths):
        return loaded
    if dist.get_rank() != 0:
        raise TrainingError(
            f"{paths[found.index(None)]}: rank {dist.get_rank()} cannot use the index that rank 0 has just written; "
            "data.cache must be a folder that all nodes share"
        )
    built = build()
    with disk_errors_explained(paths[0].parent):
        for path, array in zip(paths, built, strict=True):
            logger.info("writing %s", path)
            with cached_file(path) as stream:
                np.save(stream, array, allow_pickle=False)
    return built


def _load(path: Path) -> np.ndarray | None:
    """Return the array of whole numbers that a file holds; None, and a warning in the log, for anything else."""
    if not is_intact(path):
        return None
    try:
        # Unlike `numpy.load` it knows no other format than .npy, and no objects.
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
        problem = None if array.dtype.kind in "iu" else f"holds {array.dtype}, not whole numbers"
    except Exception as error:  # a hostile header makes numpy's parser fail in many ways
        problem = f"is no plain array: {error}"
    if problem is None:
        return array
    logger.warning("%s %s: it is not used", path, problem)
    return None
