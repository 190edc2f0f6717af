"""Reads the documents of one part of a file, and reports each unusable document."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from efficientbench.data_tools.rows import BOM, EncodingError, RowError, decode, line_pieces, open_parquet, parse_line
from efficientbench.data_tools.tokenizing.inputs import PART_BYTES, Part

TEXT_KEY = "text"
"""The default key (JSONL) or column (parquet) of the text."""

TEXT_DOCUMENT_CHARACTERS = 4096
"""Characters after which a document of a plain text file may end."""

MAX_DOCUMENT_MB = 64
"""The default size limit of a JSONL row or a parquet text, in megabytes (10^6 bytes)."""

BAD_JSON, NO_TEXT, EMPTY, NOT_UTF8, TOO_LONG = "bad JSON", "no text field", "empty", "invalid UTF-8", "too long"
"""Reasons why a document is unusable; manifests count documents by these names."""

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

    def _pieces(self, most_bytes: int) -> Iterator[bytes]:
        part = self._part
        return (piece for _, piece in line_pieces(part.path, most_bytes, part.compression, part.begin, part.end))

    def _jsonl(self) -> Iterator[str | Reject]:
        skipping = False
        # Room for a byte order mark, a line end, and a byte too many.
        for piece in self._pieces(self._max_bytes + len(BOM) + 2):
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
        for piece in self._pieces(_LINE_PIECE_BYTES):
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

        groups = range(self._part.begin, self._part.end or 0)
        # A buffer, and no reading ahead, so that memory never holds a complete large row group.
        with open_parquet(self._part.path, buffer_size=1 << 20, pre_buffer=False) as file:
            rows = _rows_at_once([file.metadata.row_group(group) for group in groups], self._key)
            for batch in file.iter_batches(rows, groups, [self._key], use_threads=False):
                # As bytes: arrow would fail for the complete batch if one value is not UTF-8.
                for value in batch.column(0).cast(pa.large_binary()):
                    self.lines += 1
                    if value.is_valid and value.as_buffer().size > self._max_bytes:
                        yield self._too_long("the text")
                    else:
                        yield _parquet_text(value.as_py(), self.lines)

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
        row = parse_line(line, f"each line must be one object with the key {key!r}")
    except RowError as error:
        return Reject(number, NOT_UTF8 if isinstance(error, EncodingError) else BAD_JSON, str(error))
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
        return _usable(decode(value, "the text"), number)
    except EncodingError as error:
        return Reject(number, NOT_UTF8, str(error))


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
