"""Megatron's indexed format: `PREFIX.bin` contains the tokens of all documents, `PREFIX.idx` their positions.

`.idx`, little-endian: magic (9 bytes), version (uint64, 1), dtype code (uint8), S = number of sequences (uint64),
D = number of document indices (uint64), then lengths int32 [S] in tokens, pointers int64 [S] in bytes of the `.bin`,
document indices int64 [D] (the sequence at which each document starts, and S at the end), and, for multimodal data
only, modes int8 [S]. Here a document is one sequence, so D = S + 1.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from efficientbench.basics.errors import DataError
from efficientbench.basics.foreign import open_regular

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
_VERSION_BYTE, _DTYPE_BYTE, _SEQUENCES_BYTE, _DOCUMENTS_BYTE = 9, 17, 18, 26

DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
"""The format's codes of the dtypes that can hold tokens; 6 and 7 are floating-point numbers."""

MASK_DTYPE = np.dtype(np.uint8)
"""The dtype of a mask: 1 where the token is supervised."""

REMEDY = "put the right file back, or delete the pair and its manifest and make them again"
"""What helps against a damaged pair. Where a manifest marks it as complete, tokenizing again changes nothing."""
_CHUNK = 1 << 20
"""Entries of the index that are checked at once."""


@dataclass(frozen=True)
class IndexedHeader:
    """The dtype and counts of a checked pair."""

    dtype: np.dtype
    sequences: int
    documents: int
    tokens: int


def bin_path(prefix: Path) -> Path:
    """Return the path of a pair's tokens."""
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    """Return the path of a pair's index."""
    return prefix.with_name(prefix.name + ".idx")


def hashes_path(prefix: Path) -> Path:
    """Return the path of the file beside a tokenized pair that has the `document_hash` of each document."""
    return prefix.with_name(prefix.name + ".hashes")


def mask_prefix(prefix: Path) -> Path:
    """Return the path, without suffix, of the pair that holds the mask of a conversation pair's tokens."""
    return prefix.with_name(prefix.name + ".mask")


def document_hash(tokens: bytes) -> bytes:
    """Return the first 64 bits of BLAKE2b of a document's tokens, as the `.bin` stores them."""
    return hashlib.blake2b(tokens, digest_size=8).digest()


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the smallest dtype for a vocabulary, by Megatron's own rule: uint16 below 65,500 tokens, else int32."""
    return np.dtype(np.uint16 if vocab_size < 65_500 else np.int32)


def index_blocks(lengths: Callable[[], Iterable[np.ndarray]], documents: int, dtype: np.dtype) -> Iterator[bytes]:
    """Yield the bytes of an `.idx`, block by block; `lengths()` returns the documents' lengths in arrays of int32.

    `lengths` is called twice, so that memory stays bounded for an index of any size.
    """
    code = next(code for code, known in DTYPES.items() if known == dtype)
    yield _HEADER.pack(MAGIC, VERSION, code, documents, documents + 1)
    for piece in _pieces(lengths()):
        yield piece.tobytes()
    position = 0
    for piece in _pieces(lengths()):
        ends = position + np.cumsum(piece, dtype=np.int64) * dtype.itemsize
        yield np.concatenate([np.array([position]), ends])[: len(piece)].tobytes()
        position = int(ends[-1])
    for first in range(0, documents + 1, _CHUNK):
        yield np.arange(first, min(first + _CHUNK, documents + 1), dtype=np.int64).tobytes()


def _pieces(arrays: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the numbers of the arrays, at most `_CHUNK` at a time."""
    for array in arrays:
        for first in range(0, len(array), _CHUNK):
            yield array[first : first + _CHUNK]


def check_indexed(prefix: Path) -> IndexedHeader:
    """Check a pair before anything maps it: header, sizes, every length, pointer and document index.

    The tokens themselves are not read. Memory stays bounded for an index of any size.

    Raises:
        DataError: the pair is damaged; the message names the file, and the first wrong byte.
    """
    check_present(prefix)
    index, tokens_file = idx_path(prefix), bin_path(prefix)
    dtype, lengths, pointers, starts = map_index(index)
    sequences = len(lengths)
    tokens, used_bytes = _check_sequences(index, lengths, pointers, dtype, tokens_file)
    _check_documents(index, starts, sequences)
    if tokens == 0:
        raise DataError(f"{index}: byte {lengths.offset}: all {sequences:,} sequences are empty")
    bin_bytes = tokens_file.stat().st_size
    if bin_bytes != used_bytes:
        raise DataError(
            f"{tokens_file}: byte {used_bytes:,}: the index accounts for {used_bytes:,} bytes, the file has "
            f"{bin_bytes:,}; {index.name} belongs to another run: {REMEDY}"
        )
    return IndexedHeader(dtype, sequences, len(starts) - 1, tokens)


def check_present(prefix: Path) -> None:
    """Raise a DataError if one of a pair's two files is missing."""
    index, tokens_file = idx_path(prefix), bin_path(prefix)
    for path, other in ((index, tokens_file), (tokens_file, index)):
        if not path.is_file():
            raise DataError(f"{path} is missing: a tokenized corpus is two files, this one and {other.name}")


def map_index(index: Path) -> tuple[np.dtype, np.memmap, np.memmap, np.memmap]:
    """Return the tokens' dtype, and memory-mapped lengths int32 [S], pointers int64 [S], document indices int64 [D].

    Only the header is read.

    Raises:
        DataError: the header is damaged, or does not fit the file's size.
    """
    dtype, sequences, documents = _read_header(index)
    offset = _HEADER.size
    lengths = _entries(index, np.int32, sequences, offset)
    pointers = _entries(index, np.int64, sequences, offset + lengths.nbytes)
    starts = _entries(index, np.int64, documents, offset + lengths.nbytes + pointers.nbytes)
    return dtype, lengths, pointers, starts


def _read_header(index: Path) -> tuple[np.dtype, int, int]:
    """Return the dtype, and the numbers of sequences and document indices, checked against the file's size."""
    size = index.stat().st_size
    if size < _HEADER.size:
        raise DataError(f"{index}: byte {size}: it ends inside its header of {_HEADER.size} bytes; {REMEDY}")
    with open_regular(index) as stream:
        magic, version, code, sequences, documents = _HEADER.unpack(stream.read(_HEADER.size))
    if magic != MAGIC:
        raise DataError(f"{index}: byte 0: not a Megatron index: it begins with {magic!r}, not with {MAGIC!r}")
    if version != VERSION:
        raise DataError(f"{index}: byte {_VERSION_BYTE}: version {version}, but only version {VERSION} is known")
    if code not in DTYPES:
        known = ", ".join(f"{code} ({np.dtype(dtype).name})" for code, dtype in DTYPES.items())
        raise DataError(f"{index}: byte {_DTYPE_BYTE}: dtype code {code} cannot hold tokens; known: {known}")
    if sequences == 0:
        raise DataError(f"{index}: byte {_SEQUENCES_BYTE}: it holds no document")
    if documents < 2:
        raise DataError(f"{index}: byte {_DOCUMENTS_BYTE}: {documents} document indices, at least 2 are needed")
    expected = _HEADER.size + 12 * sequences + 8 * documents
    if size not in (expected, expected + sequences):
        where = f"byte {min(size, expected):,}"
        raise DataError(
            f"{index}: {where}: its header ({sequences:,} sequences, {documents:,} document indices) asks for "
            f"{expected:,} bytes, the file has {size:,}: it is cut short or damaged; {REMEDY}"
        )
    return np.dtype(DTYPES[code]), sequences, documents


def _entries(index: Path, dtype: type[np.integer], count: int, offset: int) -> np.memmap:
    return np.memmap(index, dtype=dtype, mode="r", offset=offset, shape=(count,))


def _check_sequences(
    index: Path, lengths: np.memmap, pointers: np.memmap, dtype: np.dtype, tokens_file: Path
) -> tuple[int, int]:
    """Check lengths and pointers; return the number of tokens, and the `.bin` byte where the last sequence ends."""
    bin_bytes = tokens_file.stat().st_size
    tokens = used_bytes = 0
    for first in range(0, len(lengths), _CHUNK):
        length = lengths[first : first + _CHUNK].astype(np.int64)
        pointer = pointers[first : first + _CHUNK]
        end = pointer + length * dtype.itemsize
        for wrong, entries, what in (
            (length < 0, lengths, "the length is negative"),
            ((pointer < 0) | (pointer > bin_bytes), pointers, f"the pointer lies outside {tokens_file.name}"),
            (end > bin_bytes, pointers, f"the sequence ends past the end of {tokens_file.name}"),
        ):
            if wrong.any():
                row = first + int(wrong.argmax())
                raise DataError(
                    f"{index}: byte {entries.offset + row * entries.itemsize:,}: sequence {row:,}: {what} "
                    f"({bin_bytes:,} bytes); pointer {pointers[row]:,}, length {lengths[row]:,} tokens of "
                    f"{dtype.itemsize} bytes; {REMEDY}"
                )
        tokens += int(length.sum())
        used_bytes = max(used_bytes, int(end.max()))
    return tokens, used_bytes


def check_layout(prefix: Path) -> None:
    """Check that a checked pair's sequences follow each other in the `.bin` without gaps, as every writer writes them.

    Raises:
        DataError: there is a gap; the message names the `.idx`, and the first wrong byte.
    """
    index = idx_path(prefix)
    dtype, lengths, pointers, _ = map_index(index)
    expected = 0
    for first in range(0, len(lengths), _CHUNK):
        ends = expected + np.cumsum(lengths[first : first + _CHUNK], dtype=np.int64) * dtype.itemsize
        begins = np.concatenate([np.array([expected]), ends[:-1]])
        wrong = begins != pointers[first : first + _CHUNK]
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"{index}: byte {pointers.offset + (first + row) * 8:,}: sequence {first + row:,}: pointer "
                f"{pointers[first + row]:,}, but the sequence before it ends at byte {begins[row]:,}; {REMEDY}"
            )
        expected = int(ends[-1])


def _check_documents(index: Path, starts: np.memmap, sequences: int) -> None:
    """Check that document indices rise from 0 to the number of sequences."""
    for first in range(0, len(starts), _CHUNK):
        # One entry more than the chunk, so that the step from one chunk to the next is checked too.
        part = starts[first : first + _CHUNK + 1]
        wrong = (part < 0) | (part > sequences)
        wrong[1:] |= part[1:] < part[:-1]
        if first == 0:
            wrong[0] |= part[0] != 0
        if first + len(part) == len(starts):
            wrong[-1] |= part[-1] != sequences
        if wrong.any():
            row = first + int(wrong.argmax())
            raise DataError(
                f"{index}: byte {starts.offset + row * starts.itemsize:,}: document index {row:,} is "
                f"{starts[row]:,}; they must rise from 0 to {sequences:,}, the number of sequences; {REMEDY}"
            )
