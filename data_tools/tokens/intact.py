"""Verifies that the files of a corpus are intact, by the checksums in its manifest.

A run verifies every file completely before it starts, once per file identity. Tokens of more than `WHOLE_BYTES` are
verified block by block as the run reads them, so that no start waits for terabytes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import BLOCK_BYTES, FileChecksums, file_checksums, remembered_sha256
from efficientbench.basics.foreign import open_regular
from efficientbench.data_tools.tokens.indexed import REMEDY, bin_path, check_indexed
from efficientbench.data_tools.tokens.manifest import Corpus, check_counts, load_checksums, pair_fingerprint

WHOLE_BYTES = 2 << 30
"""The largest `.bin` that is verified completely before the run starts; reading it takes seconds."""


def verified_part(corpus: Corpus) -> Literal["whole", "blocks read"]:
    """Return how much of a corpus `verify_before_run` and the ranks' `BlockReader` verify together."""
    return "whole" if bin_path(corpus.prefix).stat().st_size <= WHOLE_BYTES else "blocks read"


def verify_before_run(corpus: Corpus, memory: Path) -> None:
    """Verify every file of a corpus, except tokens of more than `WHOLE_BYTES`, which `BlockReader` verifies.

    Files whose identity has not changed since an earlier call are not read again; the folder `memory` remembers them.

    Raises:
        DataError: a file is damaged; the message names the file and its first damaged block.
    """
    recorded = load_checksums(corpus.manifest)
    check_sizes(corpus, recorded)
    tokens = bin_path(corpus.prefix)
    whole = [path for path in recorded if path != tokens or verified_part(corpus) == "whole"]
    for path, found in zip(whole, remembered_sha256(whole, memory), strict=True):
        if found != recorded[path].sha256:
            verify_file(path, recorded[path], corpus.manifest)


def check_sizes(corpus: Corpus, recorded: Mapping[Path, FileChecksums]) -> None:
    """Check that the files of a corpus exist and have their recorded sizes, without reading them.

    Raises:
        DataError: a file is missing or has another size, or the manifest contradicts itself; the message names the
            file, for a pair the byte too.
    """
    for path, checksums in recorded.items():
        if not path.is_file():
            raise DataError(f"{path} is missing, which {corpus.manifest} lists: {REMEDY}")
        size_bytes = path.stat().st_size
        if size_bytes != checksums.size_bytes:
            if path.suffix in (".bin", ".idx"):
                check_counts(corpus, check_indexed(corpus.prefix))
            raise DataError(f"{path} has {size_bytes:,} bytes, {checksums.size_bytes:,} were written there: {REMEDY}")
    if pair_fingerprint(corpus.prefix, recorded) != corpus.fingerprint:
        raise DataError(f"{corpus.manifest}: its fingerprint is not that of its checksums: {REMEDY}")


def verify_file(path: Path, recorded: FileChecksums, manifest: Path) -> None:
    """Read a file; raise a DataError that names the first block whose content changed."""
    found = file_checksums(path)
    if found == recorded:
        return
    blocks = zip(_crcs(found), _crcs(recorded), strict=False)
    block = next((number for number, (now, then) in enumerate(blocks) if now != then), 0)
    raise _damaged(path, block, found.size_bytes, manifest)


class BlockReader:
    """Verifies a block of a `.bin` the first time that a part of it is read: its checksum, and bounds of its tokens."""

    def __init__(self, path: Path, recorded: FileChecksums, manifest: Path, dtype: np.dtype, vocab_size: int) -> None:
        self._path, self._manifest, self._size_bytes = path, manifest, recorded.size_bytes
        self._crcs = _crcs(recorded)
        self._dtype, self._vocab_size = dtype, vocab_size
        self._verified = np.zeros(len(self._crcs), bool)
        # Read, not mapped: mapped pages would count as memory of the process that is measured.
        self._file = open_regular(path, buffering=0)

    def verify(self, begin: int, end: int) -> None:
        """Verify the blocks that contain the bytes from `begin` up to `end`.

        Raises:
            DataError: a block is damaged, or holds a token outside the vocabulary; the message names file and block.
        """
        for block in range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            if self._verified[block]:
                continue
            content = os.pread(self._file.fileno(), BLOCK_BYTES, block * BLOCK_BYTES)
            if zlib.crc32(content) != self._crcs[block]:
                raise _damaged(self._path, block, self._size_bytes, self._manifest)
            tokens = np.frombuffer(content, self._dtype)
            if tokens.min() < 0 or tokens.max() >= self._vocab_size:
                raise DataError(
                    f"{self._path}: from byte {block * BLOCK_BYTES:,} a token lies outside the vocabulary of "
                    f"{self._vocab_size:,} in {self._manifest}: {REMEDY}"
                )
            self._verified[block] = True


def _crcs(checksums: FileChecksums) -> np.ndarray:
    """Return the CRC-32 of each block, uint32 [blocks]."""
    return np.frombuffer(bytes.fromhex(checksums.crc32_per_mib), ">u4")


def _damaged(path: Path, block: int, size_bytes: int, manifest: Path) -> DataError:
    begin = block * BLOCK_BYTES
    end = min(begin + BLOCK_BYTES, size_bytes)
    return DataError(
        f"{path}: bytes {begin:,} to {end:,}: not what was written there, by the checksums in {manifest}: {REMEDY}"
    )
