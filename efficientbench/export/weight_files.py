"""Write tensors into safetensors files of limited size, with the index that maps each tensor to its file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file

from efficientbench.data_tools.files import write_file

LARGEST_SHARD_BYTES = 2 * 10**9
"""Size of a file; a larger tensor has a file of its own."""


def write_shards(
    tensors: Iterable[tuple[str, torch.Tensor]], folder: Path, largest_bytes: int = LARGEST_SHARD_BYTES
) -> int:
    """Write the tensors in their order, with those of one file in memory; return the size of all in bytes.

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
    # safetensors makes files that only their owner can read: restore the mode that the umask gives.
    path.chmod(mode)
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    return list(shard)


def _numbered(folder: Path, number: int) -> Path:
    """Return a file's temporary name: the final one has the number of files, which is not yet known."""
    return folder / f"shard-{number + 1:05d}.safetensors"
