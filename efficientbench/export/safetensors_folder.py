"""Read and write weights as transformers saves them: only safetensors, in one file or in several with an index."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.files import write_file
from efficientbench.basics.foreign import parse_json, read_whole
from efficientbench.export.packed import PACKED, SHAPE, ZERO_POINT

LARGEST_SHARD_BYTES = 2 * 10**9
"""The largest size of a file; a larger tensor gets a file of its own."""


def write_shards(
    tensors: Iterable[tuple[str, torch.Tensor]], folder: Path, largest_bytes: int = LARGEST_SHARD_BYTES
) -> int:
    """Write the tensors in order, with one file's tensors in memory at a time; return their total size in bytes.

    A single file is `model.safetensors`; several are `model-00001-of-0000N.safetensors` with an index.
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


WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}
"""The dtypes that our weights may have: safetensors' names → ours."""
FLOAT32 = "e_score_correction_bias"
"""The end of the names of tensors that are float32 beside weights of any dtype."""
BUFFERS = ("rotary_emb.inv_freq",)
"""Name endings of tensors in older folders that follow from the configuration; transformers ignores them."""


class Tensors(Mapping[str, torch.Tensor]):
    """A folder's weights by transformers' names; a weight is read from the disk when it is asked for."""

    def __init__(self, folder: Path) -> None:
        """Open every file, and read the names of its tensors.

        Raises:
            ConfigError: there are no safetensors, or a file is missing, damaged or lacks a tensor; the message names
                it.
        """
        self.folder = folder
        self._files: dict[str, Any] = {}
        """The open file of each tensor, by the tensor's name."""
        self.dtypes: dict[str, str] = {}
        """safetensors' name of each tensor's dtype, by the tensor's name."""
        for name, wanted in _contents(folder).items():
            path = folder / name
            try:
                file = safe_open(path, "pt")
                held = {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118, no mapping
            except (OSError, SafetensorError) as error:
                raise ConfigError(
                    f"{path}: damaged or incomplete, it cannot be read as safetensors ({error})"
                ) from None
            missing = sorted(set(wanted) - held.keys()) if wanted is not None else []
            if missing:
                raise ConfigError(f"{path}: lacks {missing[0]}, which {INDEX} places there")
            for key in held if wanted is None else wanted:
                self._files[key], self.dtypes[key] = file, held[key]
        if not self._files:
            raise ConfigError(f"{folder}: its safetensors hold no tensor")

    @property
    def dtype(self) -> str:
        """The dtype of all tensors, by our name.

        Raises:
            ConfigError: the tensors have several dtypes, or one that none of our models has.
        """
        dtypes = {
            name: dtype
            for name, dtype in self.dtypes.items()
            if not name.endswith((FLOAT32, PACKED, ZERO_POINT, SHAPE, *BUFFERS))
        }
        first = next(iter(dtypes))
        for name, dtype in dtypes.items():
            if dtype not in DTYPES:
                raise ConfigError(f"{self.folder}: {name} is {dtype}, and weights here are {', '.join(DTYPES)}")
            if dtype != self.dtypes[first]:
                raise ConfigError(
                    f"{self.folder}: {name} is {dtype}, and {first} is {self.dtypes[first]}: all weights must have one "
                    "dtype"
                )
        return DTYPES[self.dtypes[first]]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._files[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _contents(folder: Path) -> dict[str, list[str] | None]:
    """Return the names of the tensors to read from each file of a folder; None for all tensors of the file."""
    if (folder / WHOLE).is_file():
        # As in transformers, which then reads no index.
        return {WHOLE: None}
    index = folder / INDEX
    if not index.is_file():
        others = sorted(path.name for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".pth", ".gguf"))
        found = f"it has {others[0]}, which is not read here: a pickle can run code" if others else "it has no weights"
        raise ConfigError(
            f"{folder}: neither {WHOLE} nor {INDEX}; {found}; save_pretrained of transformers writes safetensors"
        )
    try:
        places = parse_json(read_whole(index))["weight_map"]
        pairs = [(str(tensor), str(name)) for tensor, name in places.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index}: damaged, it has no weight_map ({type(error).__name__}: {error})") from None
    files: dict[str, list[str] | None] = {}
    for tensor, name in sorted(pairs, key=lambda pair: pair[1]):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ConfigError(f"{index}: places {tensor} in {name!r}, which is no safetensors file of this folder")
        if name not in files and not (folder / name).is_file():
            raise ConfigError(f"{folder / name}: missing, and {INDEX} places {tensor} there")
        wanted = files.setdefault(name, [])
        assert wanted is not None
        wanted.append(tensor)
    return files
