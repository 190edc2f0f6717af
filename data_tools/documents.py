"""Documents from the parts of files: what is usable, and what is not and why."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from efficientbench.data_tools.errors import DataError, first_line
from efficientbench.data_tools.inputs import PART_BYTES, Part, cut_into_parts, find_inputs

TEXT_KEY = "text"
TEXT_DOCUMENT_CHARACTERS = 4096
# Why a document is not usable; counts are kept under these names.
BAD_JSON, NO_TEXT, EMPTY, NOT_UTF8 = "bad JSON", "no text field", "empty", "invalid UTF-8"

_BOM = b"\xef\xbb\xbf"
_ROWS = 1000  # of parquet, at once
_LINE_PIECE_BYTES = 2 * TEXT_DOCUMENT_CHARACTERS


@dataclass(frozen=True)
class Reject:
    """A document that is not usable: `line` counts from 1 (a parquet file's rows too), `detail` is for people."""

    line: int
    reason: str
    detail: str


class PartReader:
    """Iterates over one part's documents, a string each, or the `Reject` that stands for an unusable one.

    Lines count from the part's own first line; once all is read, `lines` is how many the part has.

    A plain text file does not say where its documents end, so it is cut into documents of about
    `TEXT_DOCUMENT_CHARACTERS` characters: at the first blank line from there on; else, from twice that length on, at
    the next line end; else, in a line that is longer still, where the limit falls; and between parts. Blank lines of
    JSONL, and pieces of text without any visible character, are no documents. Memory stays bounded by the longest
    document.

    Raises (while it iterates):
        DataError: the file is cut short or damaged as a whole, so that documents cannot be told apart.
        OSError: the file cannot be read.
    """

    def __init__(self, part: Part, text_key: str = TEXT_KEY) -> None:
        self.lines = 0
        self._part = part
        self._key = text_key

    def __iter__(self) -> Iterator[str | Reject]:
        if self._part.kind == "parquet":
            return self._parquet()
        return self._jsonl() if self._part.kind == "jsonl" else self._text()

    def _jsonl(self) -> Iterator[str | Reject]:
        for line in _pieces(self._part, -1):
            self.lines += 1
            if not line.isspace():
                yield _jsonl_text(line, self.lines, self._key)

    def _text(self) -> Iterator[str | Reject]:
        limit = TEXT_DOCUMENT_CHARACTERS
        pieces: list[str] = []
        length = 0
        bad: Reject | None = None
        rest = b""
        line_bytes = 0  # of the present line, in the pieces before
        for piece in _pieces(self._part, _LINE_PIECE_BYTES):
            carried, whole = len(rest), rest + piece
            text, rest, wrong = _decode_piece(whole)
            if (length >= limit and text.isspace()) or length >= 2 * limit:
                yield from self._text_document(pieces, bad)
                pieces, length, bad = [], 0, None
            if wrong is not None and bad is None:
                at = line_bytes - carried + wrong
                bad = Reject(self.lines + 1, NOT_UTF8, f"not UTF-8: byte {at + 1} of the line is 0x{whole[wrong]:02x}")
            pieces.append(text)
            length += len(text)
            line_bytes += len(piece)
            if piece.endswith(b"\n"):
                self.lines += 1
                line_bytes = 0
        if rest:
            bad = bad or Reject(self.lines + 1, NOT_UTF8, "not UTF-8: it ends in the middle of a character")
        yield from self._text_document(pieces, bad)

    @staticmethod
    def _text_document(pieces: list[str], bad: Reject | None) -> Iterator[str | Reject]:
        if bad is not None:
            yield bad
        elif (text := "".join(pieces).strip("\n")) and not text.isspace():
            yield text

    def _parquet(self) -> Iterator[str | Reject]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        begin, end = self._part.begin, self._part.end or 0
        try:
            # A buffer, and no reading ahead, so that large row groups are not held whole.
            with pq.ParquetFile(self._part.path, buffer_size=1 << 20, pre_buffer=False) as file:
                groups = [file.metadata.row_group(group) for group in range(begin, end)]
                row_bytes = sum(group.total_byte_size for group in groups) // max(1, sum(g.num_rows for g in groups))
                rows = max(1, min(_ROWS, PART_BYTES // max(1, row_bytes)))
                for batch in file.iter_batches(rows, range(begin, end), [self._key], use_threads=False):
                    # As bytes: arrow would fail for a whole batch where one value is not UTF-8.
                    for value in batch.column(0).cast(pa.large_binary()).to_pylist():
                        self.lines += 1
                        yield _parquet_text(value, self.lines)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DataError(f"{self._part.path} cannot be read as parquet: {first_line(error)}") from None


def read_documents(*inputs: str | Path, text_key: str = TEXT_KEY) -> Iterator[str]:
    """Yield the documents of files, folders and globs, as `PartReader` does; empty ones are left out.

    Raises:
        DataError: an input is missing, of an unknown kind or empty; and, while the documents are read: one of them is
            not usable (with file:line), or none is there.
    """
    paths = find_inputs(inputs)
    for path in paths:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty")
    return _strict(paths, cut_into_parts(paths, text_key), text_key)


def _strict(paths: list[Path], parts: Iterable[Part], text_key: str) -> Iterator[str]:
    found = False
    path, before = None, 0  # lines of the file in the parts before
    for part in parts:
        if part.path != path:
            path, before = part.path, 0
        reader = PartReader(part, text_key)
        for document in reader:
            if isinstance(document, str):
                found = True
                yield document
            elif document.reason != EMPTY:
                raise DataError(f"{path}:{before + document.line}: {document.detail}")
        before += reader.lines
    if not found:
        raise DataError(f"{', '.join(map(str, paths))} holds no usable document: every text in it is empty")


def _jsonl_text(line: bytes, number: int, key: str) -> str | Reject:
    """The text of one JSON object."""
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return Reject(number, NOT_UTF8, f"not UTF-8: byte {error.start + 1} of the line is 0x{line[error.start]:02x}")
    except json.JSONDecodeError as error:
        need = f"each line must be one object with the key {key!r}"
        return Reject(number, BAD_JSON, f"not JSON at character {error.pos + 1} ({error.msg}); {need}")
    except ValueError as error:  # a number beyond Python's limit of digits
        return Reject(number, BAD_JSON, str(error))
    except RecursionError:
        return Reject(number, BAD_JSON, "the JSON is nested too deeply")
    if not isinstance(row, dict):
        return Reject(
            number, BAD_JSON, f"a JSON object with the key {key!r} is needed, the line holds: {_json_type(row)}"
        )
    if key not in row:
        keys = ", ".join(map(repr, row)) or "none"
        return Reject(number, NO_TEXT, f"the key {key!r} is missing; keys there: {keys}"[:300])
    text = row[key]
    if not isinstance(text, str):
        return Reject(number, NO_TEXT, f"the key {key!r} must hold a string, it holds: {_json_type(text)}")
    return _usable(text, number)


def _usable(text: str, number: int) -> str | Reject:
    if not text or text.isspace():
        return Reject(number, EMPTY, "the text is empty")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            lone = text[error.start]
            return Reject(number, NOT_UTF8, f"half of a surrogate pair ({lone!r}) stands alone: it is no character")
    return text


def _parquet_text(value: bytes | None, number: int) -> str | Reject:
    if value is None:
        return Reject(number, NO_TEXT, "the text is null")
    try:
        return _usable(value.decode(), number)
    except UnicodeDecodeError as error:
        return Reject(number, NOT_UTF8, f"not UTF-8: byte {error.start + 1} of the text is 0x{value[error.start]:02x}")


def _json_type(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "Boolean", type(None): "null"}
    return names.get(type(value), "number")


def _decode_piece(piece: bytes) -> tuple[str, bytes, int | None]:
    """The text of a piece; the bytes of a character that the piece cuts in two; where a byte is not UTF-8, if any."""
    try:
        return piece.decode(), b"", None
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and not piece.endswith(b"\n"):
            return piece[: error.start].decode(), piece[error.start :], None
        return piece.decode(errors="replace"), b"", error.start


def _pieces(part: Part, max_bytes: int) -> Iterator[bytes]:
    """The lines that begin in a part, with their ends; lines of more than `max_bytes` (-1: none) in several pieces.

    Raises:
        DataError: the file is compressed, and damaged or cut short.
    """
    try:
        with _opened(part) as stream:
            if part.begin:
                stream.seek(part.begin - 1)
                while (skipped := stream.readline(_LINE_PIECE_BYTES)) and not skipped.endswith(b"\n"):
                    pass
            position = stream.tell() if part.end is not None else 0
            at_line_start = True
            while not at_line_start or part.end is None or position < part.end:
                if not (piece := stream.readline(max_bytes)):
                    return
                yield piece.removeprefix(_BOM) if position == 0 else piece
                position += len(piece)
                at_line_start = piece.endswith(b"\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{part.path} is damaged or cut short: {first_line(error)}") from None
    except OSError as error:
        if part.compression is None or error.errno is not None:
            raise
        raise DataError(f"{part.path} is damaged or cut short: {first_line(error)}") from None


def _opened(part: Part) -> IO[bytes] | gzip.GzipFile | io.BufferedReader:
    if part.compression is not None and part.path.stat().st_size == 0:
        raise DataError(f"{part.path} is damaged or cut short: it is empty")
    if part.compression == "gz":
        return gzip.open(part.path)
    if part.compression == "zst":
        # Arrow's reader, since that of `zstandard` takes the end of a file that is cut short for the end of its text.
        import pyarrow as pa

        return io.BufferedReader(pa.input_stream(part.path, compression="zstd"), 1 << 20)
    return part.path.open("rb")
