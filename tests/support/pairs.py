"""Large `.bin/.idx` pairs, written as arrays, and damage to pairs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np


def overwrite(path: Callable[[Path], Path], offset: int, content: bytes) -> Callable[[Path], None]:
    """A function that overwrites bytes of the file `path(prefix)` of a pair."""

    def damage(prefix: Path) -> None:
        data = bytearray(path(prefix).read_bytes())
        data[offset : offset + len(content)] = content
        path(prefix).write_bytes(data)

    return damage


def write_equal_documents(prefix: Path, documents: int, length: int) -> None:
    """`documents` of `length` tokens; each token is its document's number modulo 50,000."""
    tokens = np.repeat(np.arange(documents) % 50_000, length).astype(np.uint16)
    prefix.with_suffix(".bin").write_bytes(tokens.tobytes())
    header = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, documents, documents + 1)
    lengths = np.full(documents, length, np.int32)
    pointers = np.arange(documents, dtype=np.int64) * length * 2
    starts = np.arange(documents + 1, dtype=np.int64)
    prefix.with_suffix(".idx").write_bytes(header + lengths.tobytes() + pointers.tobytes() + starts.tobytes())
