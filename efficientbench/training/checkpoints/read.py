"""Read a checkpoint in one process without ranks: the metadata as plain data, and every weight in full."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, Metadata
from torch.distributed.checkpoint.metadata import StorageMeta, TensorStorageMetadata

from efficientbench.basics.errors import CheckpointError
from efficientbench.basics.foreign import open_regular
from efficientbench.training.checkpoints.hashing import Report
from efficientbench.training.checkpoints.manifest import verify
from efficientbench.training.checkpoints.metadata_checks import check_metadata

WEIGHT = "model."

_METADATA = "torch.distributed.checkpoint.metadata"
ALLOWED = {
    ("collections", "OrderedDict"),
    *(
        (_METADATA, name)
        for name in (
            *("ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties"),
            *("TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    *(("torch", name) for name in ("bfloat16", "float16", "float32", "float64", "int64", "uint8")),
}
"""Names that the pickle of `.metadata` may use: classes of plain data, and functions that return it."""


def only_members_of(*enums: type[Enum]) -> Callable[[Any, Any], Enum]:
    """Return a function that replaces `getattr` while a pickle is read, and returns only members of these enums.

    Python 3.11.2 alone pickles members of enums as `getattr(Enum, "name")`. `getattr` itself would give a pickle every
    attribute of every object that it can name, and so any code. torch's safe loader takes the function as
    `torch.serialization.safe_globals([(only_members_of(Kind), "builtins.getattr"), Kind])`.

    The function raises CheckpointError for any other attribute.
    """
    members = {(enum, name): member for enum in enums for name, member in enum.__members__.items()}

    def member_of(enum: Any, name: Any) -> Enum:
        try:
            return members[enum, name]
        except (KeyError, TypeError):  # TypeError: not hashable
            listed = ", ".join(each.__name__ for each in enums)
            raise CheckpointError(f"it asks getattr for something else than a member of {listed}") from None

    return member_of


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return only_members_of(self.find_class(_METADATA, "_MEM_FORMAT_ENCODING"))
        if (module, name) not in ALLOWED:
            raise CheckpointError(f"it names {module}.{name}, which is no part of a checkpoint's metadata")
        return super().find_class(module, name)


class MetadataReader(FileSystemReader):
    """torch's reader of the distributed format, restricted to unpickle only plain data."""

    def __init__(self, folder: Path, files: Collection[str]) -> None:
        """`files`: paths below the folder that may be read."""
        super().__init__(folder)
        self.folder, self.files = folder, files

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return `.metadata`, which must describe only tensors in the checkpoint's own files.

        Raises:
            CheckpointError: the metadata is damaged or describes anything else.
        """
        path = self.folder / ".metadata"
        try:
            with open_regular(path) as file:
                metadata = _MetadataUnpickler(file).load()
            if not isinstance(metadata, Metadata):
                raise CheckpointError("it is no metadata of a checkpoint")
            check_metadata(metadata, {name: (self.folder / name).stat().st_size for name in self.files})
        except CheckpointError as error:
            raise CheckpointError(f"{path}: refused, {error}") from None
        # A pickle may hold values of any type, which fail in any way.
        except Exception as error:
            raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {error})") from None
        metadata.storage_meta = getattr(metadata, "storage_meta", None) or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class Weights(Mapping[str, torch.Tensor]):
    """A checkpoint's weights by global name; each access reads the weight from the disk.

    A weight is a full tensor on the host, in the dtype of training; no process group is needed. The global names are
    those of `model/initial_weights.py`: each expert's weights have separate names, and a tied output projection is the
    embedding. Reading a weight raises CheckpointError if its file is damaged.
    """

    def __init__(self, folder: Path, report: Report | None = None) -> None:
        """Verify a checkpoint's folder, such as `<run folder>/checkpoint/step_00000100`.

        `report` is told what is verified or read.

        Raises:
            CheckpointError: a file is damaged or is refused; the message names it.
        """
        self.folder, self.manifest, self._report = folder, verify(folder, report=report), report
        metadata = MetadataReader(folder, self.manifest.files).read_metadata()
        self._stored = {
            name.removeprefix(WEIGHT): each
            for name, each in metadata.state_dict_metadata.items()
            if name.startswith(WEIGHT) and isinstance(each, TensorStorageMetadata)
        }
        self._parts: dict[str, list[tuple[Any, Any]]] = {name: [] for name in self._stored}
        for index, part in metadata.storage_data.items():
            if index.fqn.startswith(WEIGHT):
                self._parts[index.fqn.removeprefix(WEIGHT)].append((index.offset, part))

    def __getitem__(self, name: str) -> torch.Tensor:
        if self._report is not None:
            self._report(f"reading {name}")
        stored = self._stored[name]
        weight = torch.empty(stored.size, dtype=stored.properties.dtype)
        missing = weight.numel()
        # Not by torch's own planner, which differs between torch's versions.
        for offset, part in self._parts[name]:
            tensor = _read_tensor(self.folder / part.relative_path, part.offset, part.length)
            try:
                weight[tuple(slice(at, at + size) for at, size in zip(offset, tensor.shape, strict=True))] = tensor
            except (RuntimeError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"{part.relative_path}: refused, a part of {name} does not fit: {error}"
                ) from None
            missing -= tensor.numel()
        if missing:
            raise CheckpointError(f"{self.folder / '.metadata'}: refused, the parts of {name} are not the whole of it")
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def _read_tensor(path: Path, offset: int, length: int) -> torch.Tensor:
    with open_regular(path) as file:
        file.seek(offset)
        content = io.BytesIO(file.read(length))
    try:
        tensor = torch.load(content, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"{path}: refused at byte {offset:,}, {str(error).partition(chr(10))[0]}") from None
    if not isinstance(tensor, torch.Tensor):
        raise CheckpointError(f"{path}: refused at byte {offset:,}, it holds no tensor there")
    return tensor
