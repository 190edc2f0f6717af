"""Reads rows by number from files of JSONL, JSON, CSV and parquet, and lines from any byte of a text."""

from __future__ import annotations

import bisect
import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from efficientbench.basics.errors import DataError, first_line
from efficientbench.basics.foreign import check_regular, open_regular, parse_json, read_whole, text_lines

if TYPE_CHECKING:
    import numpy as np

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
PARQUET_SUFFIXES = (".parquet",)
ROW_SUFFIXES = (*JSONL_SUFFIXES, *PARQUET_SUFFIXES)
CSV_SUFFIXES = (".csv",)

BOM = b"\xef\xbb\xbf"
MOST_LINE_BYTES = 1 << 28
"""Longest line of a row that is read by number; a line is read at once."""
_MOST_LIST_BYTES = 1 << 32
"""Largest file with a JSON list; it is read at once."""
_SKIPPED_AT_ONCE = 8192

Row: TypeAlias = Mapping[str, Any]


class RowError(DataError):
    """A row cannot be used. The message begins with the invalid key, if one is; `place` says where the row stands."""


def reason_of(error: RowError) -> str:
    """Return why a row cannot be used, without what differs from row to row: numbers and quoted values."""
    reason = re.sub(r"it is: .*|'[^']*'|\"[^\"]*\"", "…", first_line(error))
    return re.sub(r"0x[0-9a-f]+|(?<!UTF-)\d[\d,.]*", "N", reason)[:160]


class EncodingError(RowError):
    """A row is not UTF-8."""


class FileRows:
    """The rows of several files, one file after the other. Can be pickled.

    A file is parquet or CSV by its suffix; any other one is JSONL, or a JSON list if it begins with a bracket. Raises
    DataError if a file cannot be read as such.
    """

    def __init__(self, files: Sequence[Path], csv_columns: Sequence[str] | None = None) -> None:
        """Open the files; `csv_columns` names the columns of CSV files, which have no header."""
        self._files = [_open_rows(path, csv_columns) for path in files]
        self._ends = list(itertools.accumulate(map(len, self._files), initial=0))

    def __len__(self) -> int:
        return self._ends[-1]

    def place(self, number: int) -> str:
        """Return a row's file, and its line, its item in a list or its row in parquet, counted from 1."""
        file = bisect.bisect_right(self._ends, number) - 1
        return self._files[file].place(number - self._ends[file])

    def read(self, numbers: np.ndarray) -> Iterator[Row]:
        """Yield the rows with these ascending numbers. Raises RowError for an invalid row."""
        for file, begin in zip(self._files, self._ends, strict=False):
            first, last = (bisect.bisect_left(numbers, end) for end in (begin, begin + len(file)))
            for row in file.read(numbers[first:last] - begin):
                if not isinstance(row, Mapping):
                    raise RowError(f"a row is one JSON object, this one is {row!r:.60}")
                yield row


def attempts(rows: FileRows | HeldRows, numbers: np.ndarray) -> Iterator[Any]:
    """Yield the rows with these ascending numbers; in place of an invalid row, the RowError that says why."""
    done = 0
    while done < len(numbers):
        try:
            for row in rows.read(numbers[done:]):
                done += 1
                yield row
        except RowError as error:
            done += 1
            yield error


@dataclass(frozen=True)
class HeldRows:
    """Rows in memory."""

    source: str
    """What precedes a row's number in messages."""
    numbers: Sequence[int] | np.ndarray
    """Each row's number in messages, such as its line."""
    rows: Sequence[Any] | np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, row: int) -> str:
        """Return where a row stands, for messages."""
        return f"{self.source}{self.numbers[row]}"

    def read(self, numbers: np.ndarray) -> Iterator[Any]:
        """Yield the rows with these ascending numbers. Raises RowError for an invalid row."""
        return (self.rows[number] for number in numbers.tolist())


@dataclass(frozen=True)
class _Csv(HeldRows):
    columns: Sequence[str]

    def read(self, numbers: np.ndarray) -> Iterator[Row]:
        for row in super().read(numbers):
            if len(row) != len(self.columns):
                raise RowError(f"{len(row)} columns; {len(self.columns)} are needed: {', '.join(self.columns)}")
            yield dict(zip(self.columns, row, strict=True))


@dataclass(frozen=True)
class _Jsonl(HeldRows):
    """`rows` has the byte at which each line starts."""

    path: Path

    def read(self, numbers: np.ndarray) -> Iterator[Any]:
        with _unless_refused(self.path), open_regular(self.path) as stream:
            for start in super().read(numbers):
                stream.seek(int(start))
                yield parse_line(stream.readline())


@dataclass(frozen=True)
class _Parquet(HeldRows):
    """`rows` has the row at which each row group starts, and the number of rows."""

    path: Path

    def read(self, numbers: np.ndarray) -> Iterator[Row]:
        import numpy as np

        with _unless_refused(self.path), open_parquet(self.path) as file:
            for group in np.unique(np.searchsorted(self.rows, numbers, side="right") - 1).tolist():
                begin, end = self.rows[group : group + 2]
                table = file.read_row_group(group)
                for number in numbers[(begin <= numbers) & (numbers < end)].tolist():
                    yield table.slice(number - begin, 1).to_pylist()[0]


def _open_rows(path: Path, csv_columns: Sequence[str] | None) -> HeldRows:
    suffix = path.suffix.lower()
    with _unless_refused(path):
        if suffix in CSV_SUFFIXES and csv_columns is not None:
            return _csv_rows(path, csv_columns)
        if suffix in PARQUET_SUFFIXES:
            with open_parquet(path) as file:
                groups = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
            return _Parquet(f"{path}: row ", range(1, sum(groups) + 1), [0, *itertools.accumulate(groups)], path)
        return _json_rows(path)


def _csv_rows(path: Path, columns: Sequence[str]) -> _Csv:
    rows, lines, before = [], [], 0
    try:
        with io.TextIOWrapper(open_regular(path), "utf-8-sig", newline="") as stream:
            reader = csv.reader(text_lines(stream, path), strict=True)
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(before + 1)
                before = reader.line_num
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as CSV: {first_line(error)}") from None
    return _Csv(f"{path}:", lines, rows, tuple(columns))


def _json_rows(path: Path) -> HeldRows:
    # Imported late, here and in `_Parquet`: help that names the tasks, which import this module, appears at once.
    import numpy as np

    starts: list[int] = []
    lines: list[int] = []
    for number, (start, line) in enumerate(line_pieces(path, MOST_LINE_BYTES + 1), 1):
        if len(line) > MOST_LINE_BYTES:
            raise DataError(f"{path}:{number}: the line has more than {MOST_LINE_BYTES:,} bytes")
        if not starts and line.lstrip().startswith(b"["):
            return _list_rows(path)
        if not line.isspace():
            starts.append(start)
            lines.append(number)
    return _Jsonl(f"{path}:", np.array(lines, np.int64), np.array(starts, np.int64), path)


def _list_rows(path: Path) -> HeldRows:
    try:
        rows = parse_json(read_whole(path, _MOST_LIST_BYTES))
    except ValueError as error:
        raise DataError(f"{path}: a JSON list that cannot be read: {first_line(error)}") from None
    return HeldRows(f"{path}: item ", range(1, len(rows) + 1), rows)


@contextmanager
def _unless_refused(path: Path) -> Iterator[None]:
    """Raise a DataError if the system refuses to read the file, or if it is not a regular file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def parse_line(line: bytes, need: str = "each line must be one JSON object") -> Any:
    """Return the value of a line of JSON. Raises RowError: it is none; the message ends with `need`."""
    text = decode(line.removeprefix(BOM), "the line")
    try:
        return parse_json(text)
    except JSONDecodeError as error:
        raise RowError(f"not JSON at character {error.pos + 1} ({error.msg}); {need}") from None
    except ValueError as error:  # nested too deeply, or a number beyond Python's limit of digits
        raise RowError(f"not JSON that can be read: {first_line(error)}") from None


def decode(content: bytes, what: str) -> str:
    """Return the text of UTF-8; `what` names it in the message. Raises EncodingError: it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise EncodingError(f"not UTF-8: byte {error.start + 1} of {what} is 0x{content[error.start]:02x}") from None


def line_pieces(
    path: Path, most_bytes: int, compression: str | None = None, begin: int = 0, end: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin in bytes [begin, end) of a text, in pieces of at most `most_bytes`.

    Each comes with the position of its first byte; `end` None reads to the text's end. A byte order mark at the begin
    is left out. `compression` is `gz`, `zst` or None; a compressed file is read from its first byte.

    Raises:
        DataError: a compressed file is damaged or cut short.
        OSError: the file cannot be read.
    """
    try:
        with _open_text(path, compression) as stream:
            if begin:
                stream.seek(begin - 1)
                while (skipped := stream.readline(_SKIPPED_AT_ONCE)) and not skipped.endswith(b"\n"):
                    pass
            position = stream.tell() if begin else 0
            at_line_start = True
            while not at_line_start or end is None or position < end:
                if not (piece := stream.readline(most_bytes)):
                    return
                yield position, piece.removeprefix(BOM) if position == 0 else piece
                position += len(piece)
                at_line_start = piece.endswith(b"\n")
    except (EOFError, zlib.error, OSError) as error:
        # Unlike an error of the system, one of the content has no errno.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(f"{path} is damaged or cut short: {first_line(error)}") from None


def _open_text(path: Path, compression: str | None) -> IO[bytes] | gzip.GzipFile | io.BufferedReader:
    if compression is None:
        return open_regular(path)
    check_regular(path)
    if path.stat().st_size == 0:
        raise DataError(f"{path} is damaged or cut short: it is empty")
    if compression == "gz":
        return gzip.open(path)
    # Arrow's reader, since that of `zstandard` takes the end of a truncated file for the end of its text.
    import pyarrow as pa

    return io.BufferedReader(pa.input_stream(path, compression="zstd"), 1 << 20)


@contextmanager
def open_parquet(path: Path, **options: Any) -> Iterator[Any]:
    """Open a parquet file; `options` are those of `pyarrow.parquet.ParquetFile`.

    Raises:
        DataError: the file is no parquet, or the block finds that it is damaged.
        OSError: the file cannot be read.
    """
    # Imported here: it takes a while, and only parquet needs it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_regular(path)
        with pq.ParquetFile(path, **options) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(f"{path} cannot be read as parquet: {first_line(error)}") from None
