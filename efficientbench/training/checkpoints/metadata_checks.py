"""Refuse metadata that describes other tensors than the checkpoint's files hold, before anything uses it.

Checksums prove that a checkpoint is what was written, but whoever wrote it may mean harm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import Metadata
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from efficientbench.basics.errors import CheckpointError

if TYPE_CHECKING:
    from efficientbench.training.checkpoints.shards import Shard


def check_metadata(metadata: Metadata, sizes: Mapping[str, int]) -> None:
    """Check every tensor, its parts and their places in the files.

    Args:
        metadata: the metadata as read from a file; any field may hold anything.
        sizes: sizes in bytes of the files that may be read.

    Raises:
        CheckpointError: the metadata is wrong; the message says how.
    """
    described_bytes = 0
    for name, stored in metadata.state_dict_metadata.items():
        if not isinstance(stored, TensorStorageMetadata):
            raise CheckpointError(f"{name} is not a tensor")
        described_bytes += _checked_bytes(name, stored)
    if described_bytes > (held_bytes := sum(sizes.values())):
        raise CheckpointError(f"it describes {described_bytes:,} bytes of tensors, and its files hold {held_bytes:,}")
    if not isinstance(metadata.storage_data, Mapping):
        raise CheckpointError("it has no storage_data, which says where in the files the tensors lie")
    for index, part in metadata.storage_data.items():
        if index.fqn not in metadata.state_dict_metadata:
            raise CheckpointError(f"it places {index.fqn}, which it does not describe")
        if part.relative_path not in sizes:
            raise CheckpointError(f"it reads {part.relative_path}, which the manifest lacks")
        if not 0 <= part.offset <= part.offset + part.length <= sizes[part.relative_path]:
            raise CheckpointError(f"a part of {index.fqn} lies outside {part.relative_path}")


def _checked_bytes(name: str, stored: TensorStorageMetadata) -> int:
    """Return the bytes of a tensor after a check that its parts lie within it and add up to its size."""
    shape: Any = tuple(stored.size)
    if not isinstance(stored.properties.dtype, torch.dtype) or not _are_counts(shape):
        raise CheckpointError(f"{name} has no dtype or no shape")
    covered = 0
    for chunk in stored.chunks:
        begin, size = tuple(chunk.offsets), tuple(chunk.sizes)
        fits = len(begin) == len(size) == len(shape) and _are_counts((*begin, *size))
        if not fits or any(at + length > end for at, length, end in zip(begin, size, shape, strict=True)):
            raise CheckpointError(f"a part of {name} lies outside its shape {list(shape)}")
        covered += math.prod(size)
    if covered != math.prod(shape):
        raise CheckpointError(f"the parts of {name} are not the whole of it")
    return covered * stored.properties.dtype.itemsize


def _are_counts(numbers: Iterable[object]) -> bool:
    return all(type(number) is int and number >= 0 for number in numbers)


def check_shapes(metadata: Metadata, shards: Iterable[Shard]) -> None:
    """Check that the stored tensors have the shapes of a rank's shards.

    Raises:
        CheckpointError: a tensor is missing or has another shape; the message names the first.
    """
    for shard in shards:
        stored = metadata.state_dict_metadata.get(shard.name)
        if not isinstance(stored, TensorStorageMetadata):
            raise CheckpointError(f"it lacks {shard.name}")
        if tuple(stored.size) != shard.whole:
            raise CheckpointError(f"{shard.name} has the shape {list(stored.size)}, and here {list(shard.whole)}")
