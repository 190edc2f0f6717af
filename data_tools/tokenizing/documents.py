"""Reads the documents of one part of a file, and reports each unusable document."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from efficientbench.basics.errors import DataError, first_line
from efficientbench.basics.foreign import check_regular, open_regular
from efficientbench.data_tools.tokenizing.inputs import PART_BYTES, Part

TEXT_KEY = "text"
"""The default key (JSONL) or column (parquet) of the text."""

TEXT_DOCUMENT_CHARACTERS = 4096
"""Characters after which a document of a plain text file may end."""

MAX_DOCUMENT_MB = 64
"""The default size limit of a JSONL row or a parquet text, in megabytes (10^6 bytes)."""

BAD_JSON, NO_TEXT, EMPTY, NOT_UTF8, TOO_LONG = "bad JSON", "no text field", "empty", "invalid UTF-8", "too long"
"""Reasons why a document is unusable; manifests count documents by these names."""

_BOM = b"\xef\xbb\xbf"
_PARQUET_ROWS = 1000
"""The most rows of a parquet file that are read at once."""
_REPEATED_BYTES = 64 << 20
"""The most bytes of parquet rows that are read at once, if each row has the largest value of a dictionary."""

_SAMPLE_PARTS, _SAMPLE_DOCUMENTS, _SAMPLE_CHARACTERS = 8, 20, 4_000
"""Size of a sample: its parts, the first documents of each part, and the first characters of each document."""

_LINE_PIECE_BYTES = 2 * TEXT_DOCUMENT_CHARACTERS
"""Bytes of a plain text line that are read at once."""


@dataclass(frozen=True)
class Reject:
    """An unusable document."""

    line: int
    """The document's line (in a parquet file, its row), counted from 1."""
    reason: str
    """One of the reasons above."""
    detail: str
    """The reason in words for people."""


class PartReader:
    """Iterates over one part's documents: a string, or a `Reject` for an unusable document.

    Lines count from the part's own first line. After the iteration, `lines` is the number of lines in the part.

    A plain text file does not mark the ends of documents, so it is cut into documents of about
    `TEXT_DOCUMENT_CHARACTERS` characters: at the first blank line after that length; failing that, at the first line
    end after twice that length; in a longer line, at twice that length; and between parts. Blank lines of JSONL, and
    pieces of text without a visible character, are no documents. Memory is bounded by the largest allowed document,
    and by a parquet file's largest page.

    Raises (while it iterates):
        DataError: the file is cut short or damaged, so that its documents cannot be told apart.
        OSError: the file cannot be read.
    """

    def __init__(self, part: Part, text_key: str = TEXT_KEY, max_document_mb: int = MAX_DOCUMENT_MB) -> None:
        self.lines = 0
        self._part = part
        self._key = text_key
        self._max_mb, self._max_bytes = max_document_mb, max_document_mb * 1_000_000

    def __iter__(self) -> Iterator[str | Reject]:
        if self._part.kind == "parquet":
            return self._parquet()
        return self._jsonl() if self._part.kind == "jsonl" else self._text()

    def _jsonl(self) -> Iterator[str | Reject]:
        skipping = False
        # Room for a byte order mark, a line end, and a byte too many.
        for piece in _pieces(self._part, self._max_bytes + len(_BOM) + 2):
            ends = piece.endswith(b"\n")
            if not skipping:
                self.lines += 1
                if len(piece) - ends > self._max_bytes:
                    yield self._too_long("the line")
                elif not piece.isspace():
                    yield _jsonl_text(piece, self.lines, self._key)
            skipping = not ends

    def _text(self) -> Iterator[str | Reject]:
        limit = TEXT_DOCUMENT_CHARACTERS
        pieces: list[str] = []
        length = 0
        bad: Reject | None = None
        rest = b""
        line_bytes = 0  # bytes of the current line in the pieces before
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
            # A buffer, and no reading ahead, so that memory never holds a complete large row group.
            with pq.ParquetFile(self._part.path, buffer_size=1 << 20, pre_buffer=False) as file:
                groups = [file.metadata.row_group(group) for group in range(begin, end)]
                rows = _rows_at_once(groups, self._key)
                for batch in file.iter_batches(rows, range(begin, end), [self._key], use_threads=False):
                    # As bytes: arrow would fail for the complete batch if one value is not UTF-8.
                    for value in batch.column(0).cast(pa.large_binary()):
                        self.lines += 1
                        if value.is_valid and value.as_buffer().size > self._max_bytes:
                            yield self._too_long("the text")
                        else:
                            yield _parquet_text(value.as_py(), self.lines)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DataError(f"{self._part.path} cannot be read as parquet: {first_line(error)}") from None

    def _too_long(self, what: str) -> Reject:
        most = "the most for a document unless tokenize has another --max-document-mb"
        return Reject(self.lines, TOO_LONG, f"{what} has more than {self._max_mb:,} MB, {most}")


def sample_texts(parts: Sequence[Part], text_key: str, max_document_mb: int) -> list[str]:
    """Return text from the beginnings of a few parts, on which engines can be compared."""
    texts = []
    for part in parts[:: max(1, len(parts) // _SAMPLE_PARTS)][:_SAMPLE_PARTS]:
        documents = itertools.islice(PartReader(part, text_key, max_document_mb), _SAMPLE_DOCUMENTS)
        texts += [document[:_SAMPLE_CHARACTERS] for document in documents if isinstance(document, str)]
    return texts


def _rows_at_once(groups: Sequence[Any], key: str) -> int:
    """Return how many rows of parquet row groups to read at once."""
    row_bytes = sum(group.total_byte_size for group in groups) // max(1, sum(group.num_rows for group in groups))
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    # A text that a dictionary repeats takes its full size in every row; it is not larger than its column.
    largest = max(
        (c.total_uncompressed_size for c in columns if c.path_in_schema == key and c.has_dictionary_page), default=0
    )
    return max(1, min(_PARQUET_ROWS, PART_BYTES // max(1, row_bytes), _REPEATED_BYTES // max(1, largest)))


def _jsonl_text(line: bytes, number: int, key: str) -> str | Reject:
    """Return the text of a line of JSONL, or why it is unusable."""
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
    """Return a piece's text, the bytes of a character cut at its end, and the index of a byte that is not UTF-8."""
    try:
        return piece.decode(), b"", None
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and not piece.endswith(b"\n"):
            return piece[: error.start].decode(), piece[error.start :], None
        return piece.decode(errors="replace"), b"", error.start


def _pieces(part: Part, max_bytes: int) -> Iterator[bytes]:
    """Yield the lines that begin in a part; split a line of more than `max_bytes` (-1: no limit) into pieces.

    Raises:
        DataError: a compressed file is damaged or cut short.
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
    except (EOFError, zlib.error, OSError) as error:
        # Unlike an error of the system, one of the content has no errno.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(f"{part.path} is damaged or cut short: {first_line(error)}") from None


def _opened(part: Part) -> IO[bytes] | gzip.GzipFile | io.BufferedReader:
    if part.compression is not None and part.path.stat().st_size == 0:
        raise DataError(f"{part.path} is damaged or cut short: it is empty")
    if part.compression == "gz":
        check_regular(part.path)
        return gzip.open(part.path)
    if part.compression == "zst":
        # Arrow's reader, since that of `zstandard` takes the end of a truncated file for the end of its text.
        import pyarrow as pa

        check_regular(part.path)
        return io.BufferedReader(pa.input_stream(part.path, compression="zstd"), 1 << 20)
    return open_regular(part.path)
