"""Tensors into safetensors files of limited size, with the index that tells which file holds which."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file

from efficientbench.data_tools.files import write_file

LARGEST_SHARD_BYTES = 2 * 10**9
"""A tensor that is larger has a file of its own."""


def write_shards(
    tensors: Iterable[tuple[str, torch.Tensor]], folder: Path, largest_bytes: int = LARGEST_SHARD_BYTES
) -> int:
    """Write the tensors as they come, holding one file's in memory; returns their size in bytes.

    One file is `model.safetensors`; several are `model-00001-of-0000N.safetensors` with an index.
    """
    shard: dict[str, torch.Tensor] = {}
    contents: list[list[str]] = []
    total_bytes = shard_bytes = 0
    for name, tensor in tensors:
        if shard and shard_bytes + tensor.nbytes > largest_bytes:
            contents.append(_write(shard, folder, len(contents)))
            shard, shard_bytes = {}, 0
        shard[name] = tensor
        shard_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
    contents.append(_write(shard, folder, len(contents)))
    if len(contents) == 1:
        os.replace(_numbered(folder, 0), folder / "model.safetensors")
        return total_bytes
    file_of: dict[str, str] = {}
    for number, names in enumerate(contents):
        path = folder / f"model-{number + 1:05d}-of-{len(contents):05d}.safetensors"
        os.replace(_numbered(folder, number), path)
        file_of |= dict.fromkeys(names, path.name)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(file_of.items()))}
    write_file(folder / "model.safetensors.index.json", (json.dumps(index, indent=2) + "\n").encode())
    return total_bytes


def _write(shard: dict[str, torch.Tensor], folder: Path, number: int) -> list[str]:
    path = _numbered(folder, number)
    path.touch()
    mode = path.stat().st_mode
    save_file(shard, path, metadata={"format": "pt"})
    # safetensors makes files that only their owner can read.
    path.chmod(mode)
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    return list(shard)


def _numbered(folder: Path, number: int) -> Path:
    """A file's name as long as it is not known how many there are."""
    return folder / f"shard-{number + 1:05d}.safetensors"
