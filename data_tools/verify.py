"""Checks that a pair on disk is intact, and still what its manifest records."""

from __future__ import annotations

from pathlib import Path

from efficientbench.data_tools.errors import DataError
from efficientbench.data_tools.files import BLOCK_BYTES, FileChecksums
from efficientbench.data_tools.indexed import IndexedHeader, bin_path, check_indexed, check_layout, idx_path
from efficientbench.data_tools.indexed_documents import token_counts
from efficientbench.data_tools.manifest import (
    Corpus,
    check_counts,
    load_corpus,
    load_tokenize_record,
    manifest_path,
    pair_checksums,
    pair_fingerprint,
)


def verify_pair(prefix: Path, vocab_size: int | None = None) -> tuple[IndexedHeader, Corpus | None]:
    """Check header, sizes, lengths, pointers, document indices, bounds of tokens, and the manifest's checksums.

    Return what the header holds and the manifest's corpus; None if no manifest lies beside the pair, and so no
    checksums to compare with.

    Args:
        prefix: The pair's path without suffix.
        vocab_size: Bounds the tokens of a pair without manifest; None allows every token that is not negative.

    Raises:
        DataError: naming the file, and the byte (for content that differs from the recorded checksums, the block of
            bytes) where it goes wrong.
    """
    header = check_indexed(prefix)
    check_layout(prefix)
    manifest = manifest_path(prefix)
    if not manifest.exists():
        token_counts(prefix, vocab_size)
        return header, None
    corpus = load_corpus(manifest)
    check_counts(corpus, header)
    token_counts(prefix, corpus.vocab_size)
    found = pair_checksums(prefix)
    record = load_tokenize_record(manifest)
    if record is not None:
        _compare(idx_path(prefix), found["idx"], record.files["idx"])
        _compare(bin_path(prefix), found["bin"], record.files["bin"])
    if pair_fingerprint(found) != corpus.fingerprint:
        raise DataError(f"{prefix}: the pair's checksum is not the one in {manifest}: tokenize again")
    return header, corpus


def _compare(path: Path, found: FileChecksums, recorded: FileChecksums) -> None:
    """Raise a DataError that names the first block of a file that changed, if one did."""
    if found == recorded:
        return
    blocks = zip(found.crc32_per_mib, recorded.crc32_per_mib, strict=False)
    block = next((i for i, (now, then) in enumerate(blocks) if now != then), None)
    begin = 0 if block is None else block * BLOCK_BYTES
    end = min(found.size_bytes if block is None else begin + BLOCK_BYTES, found.size_bytes)
    raise DataError(
        f"{path}: bytes {begin:,} to {end:,}: not what was written there, by the manifest's checksum: tokenize again"
    )
