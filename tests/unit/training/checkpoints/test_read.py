"""Files of Python 3.11.2, which writes members of enums by getattr, and hostile files that use getattr otherwise."""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import enum_pickles
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.serialization import _get_layout

from efficientbench.basics.errors import CheckpointError
from efficientbench.training.checkpoints.read import MetadataReader, only_members_of

PRESERVE = _MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT


class Call:
    """Pickled, it is a call of a function, which may itself be the result of a call."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self.function, self.arguments

    def __call__(self) -> None:
        """What a pickle calls has to be callable."""


def read_metadata(folder: Path, value: object) -> Any:
    (folder / ".metadata").write_bytes(enum_pickles.dumps(value))
    (folder / "weights").write_bytes(bytes(8))
    return MetadataReader(folder, ["weights"]).read_metadata()


def read_safely(folder: Path, value: object) -> Any:
    """By torch's own safe loader, which is allowed this enum."""
    torch.save(value, folder / "state.pt", pickle_module=enum_pickles)
    allowed = [(only_members_of(_MEM_FORMAT_ENCODING), "builtins.getattr"), _MEM_FORMAT_ENCODING]
    with torch.serialization.safe_globals(allowed):
        return torch.load(folder / "state.pt", weights_only=True)


def test_metadata_of_python_3_11_2_is_read(tmp_path: Path) -> None:
    size = torch.Size([2])
    properties = TensorProperties(dtype=torch.float32, memory_format=torch.preserve_format)
    stored = TensorStorageMetadata(properties, size, [ChunkStorageMetadata(torch.Size([0]), size)])
    written = Metadata({"weight": stored}, storage_data={}, storage_meta=StorageMeta())
    # The test itself works: these are the bytes that name getattr.
    assert b"getattr" in enum_pickles.dumps(written)
    assert read_metadata(tmp_path, written).state_dict_metadata == {"weight": stored}


def test_the_safe_loader_reads_an_enum_of_python_3_11_2(tmp_path: Path) -> None:
    assert b"getattr" in enum_pickles.dumps(PRESERVE)
    assert read_safely(tmp_path, {"format": PRESERVE})["format"] is PRESERVE


@pytest.mark.parametrize("read", [read_metadata, read_safely])
def test_a_command_that_getattr_reaches_is_not_run(read: Callable[[Path, object], Any], tmp_path: Path) -> None:
    trace = tmp_path / "was_here"
    # A function that the reader knows leads to all that its module imports.
    start = _get_layout if read is read_metadata else torch._utils._rebuild_tensor_v2
    loaded = Call(getattr, Call(Call(getattr, Call(getattr, start, "__globals__"), "get"), "sys"), "modules")
    module = Call(Call(getattr, loaded, "get"), "os")
    hostile = Call(Call(getattr, module, "system"), f"touch '{trace}'")
    with pytest.raises(CheckpointError, match="it asks getattr for something else than a member of _MEM_FORMAT"):
        read(tmp_path, hostile)
    assert not trace.exists()
    # The test itself works: a reader that has getattr runs the command.
    pickle.loads(enum_pickles.dumps(hostile))
    assert trace.exists()


@pytest.mark.parametrize("read", [read_metadata, read_safely])
@pytest.mark.parametrize(
    "hostile",
    [
        Call(getattr, _MEM_FORMAT_ENCODING, "__class__"),
        Call(getattr, _MEM_FORMAT_ENCODING, "__init__"),
        Call(getattr, _MEM_FORMAT_ENCODING, "__members__"),
        Call(getattr, _MEM_FORMAT_ENCODING, "mro"),
        Call(getattr, PRESERVE, "__class__"),
        Call(getattr, Call(getattr, _MEM_FORMAT_ENCODING, "__class__"), "mro"),
        Call(getattr, collections.OrderedDict, "fromkeys"),
        Call(getattr, {}, "get"),
        Call(getattr, _MEM_FORMAT_ENCODING, ["__class__"]),
    ],
)
def test_getattr_for_anything_but_a_member_is_refused(
    read: Callable[[Path, object], Any], hostile: Call, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="it asks getattr for something else than a member of _MEM_FORMAT"):
        read(tmp_path, hostile)


@pytest.mark.parametrize("read", [read_metadata, read_safely])
def test_getattr_with_a_default_is_refused(read: Callable[[Path, object], Any], tmp_path: Path) -> None:
    with pytest.raises((CheckpointError, TypeError), match="takes 2 positional arguments but 3 were given"):
        read(tmp_path, Call(getattr, _MEM_FORMAT_ENCODING, "absent", 1))
