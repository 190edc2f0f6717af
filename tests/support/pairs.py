"""Large `.bin/.idx` pairs, written as arrays, and damage to pairs."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from efficientbench.basics.files import BLOCK_BYTES, FileChecksums, file_blocks, file_checksums
from efficientbench.data_tools.tokens.indexed import bin_path, idx_path, index_blocks, map_index
from efficientbench.data_tools.tokens.manifest import (
    TokenizeRecord,
    load_corpus,
    load_record,
    manifest_path,
    pair_fingerprint,
    save_corpus,
)

LONG_DOCUMENT = 1 << 20
"""Tokens of the documents that `grow` adds."""


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


def grow(prefix: Path, size_bytes: int) -> None:
    """Add documents of token 0 to a pair with a manifest, until its `.bin` has `size_bytes`; they take no space.

    The manifest's checksums are those of the new content, except the `.bin`'s SHA-256.
    """
    corpus, record = load_corpus(manifest_path(prefix)), load_record(manifest_path(prefix), TokenizeRecord)
    tokens = bin_path(prefix)
    dtype, lengths, _, _ = map_index(idx_path(prefix))
    old_bytes = tokens.stat().st_size
    added = -(-(size_bytes - old_bytes) // (LONG_DOCUMENT * dtype.itemsize))
    crcs = [f"{zlib.crc32(block.ljust(BLOCK_BYTES, bytes(1))):08x}" for block in file_blocks(tokens)]
    new_bytes = old_bytes + added * LONG_DOCUMENT * dtype.itemsize
    zeros = f"{zlib.crc32(bytes(BLOCK_BYTES)):08x}" * (new_bytes // BLOCK_BYTES - len(crcs))
    last = f"{zlib.crc32(bytes(new_bytes % BLOCK_BYTES)):08x}" if new_bytes % BLOCK_BYTES else ""
    with tokens.open("r+b") as stream:
        stream.truncate(new_bytes)
    new_lengths = np.concatenate([lengths, np.full(added, LONG_DOCUMENT, np.int32)])
    idx_path(prefix).write_bytes(b"".join(index_blocks(lambda: [new_lengths], len(new_lengths), dtype)))
    checksums = {
        tokens: FileChecksums(new_bytes, "0" * 64, "".join(crcs) + zeros + last),
        idx_path(prefix): file_checksums(idx_path(prefix)),
    }
    changed = replace(
        corpus,
        documents=len(new_lengths),
        tokens=int(new_lengths.sum(dtype=np.int64)),
        fingerprint=pair_fingerprint(prefix, checksums),
    )
    save_corpus(changed, checksums, record)
