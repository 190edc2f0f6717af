"""Reads rows of JSONL, CSV and parquet files by number."""

from __future__ import annotations

import csv
import io
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from efficientbench.basics.errors import DataError, first_line
from efficientbench.basics.foreign import check_regular, open_regular, text_lines
from efficientbench.data_tools.chat.conversations import Row, RowError
from efficientbench.data_tools.tokenizing.inputs import JSONL_SUFFIXES, PARQUET_SUFFIXES

CSV_SUFFIXES = (".csv",)
KNOWN_SUFFIXES = f"JSONL ({', '.join(JSONL_SUFFIXES)}), {PARQUET_SUFFIXES[0]}"

_BOM = b"\xef\xbb\xbf"
MOST_LINE_BYTES = 1 << 28
"""Longest line of JSONL; a line is read at once."""


@contextmanager
def _unless_refused(path: Path) -> Iterator[None]:
    """Raise a DataError if the block cannot read the file, or if it is not a regular file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


class FileRows:
    """The rows of several files, one file after the other. Can be pickled.

    Raises DataError if a file cannot be read as its suffix says.
    """

    def __init__(self, files: Sequence[Path], csv_columns: Sequence[str] | None = None) -> None:
        """Open the files; `csv_columns` names the columns of CSV files, which have no header."""
        self._files = [_opened(path, csv_columns) for path in files]
        self._ends = list(itertools.accumulate(len(file) for file in self._files))

    def __len__(self) -> int:
        return self._ends[-1]

    def place(self, number: int) -> str:
        """Return a row's file and line (in a parquet file, its row), counted from 1, for messages."""
        file, row = self._find(number)
        return f"{file.path}:{file.line(row)}"

    def read(self, numbers: np.ndarray) -> Iterator[Row]:
        """Yield the rows with these ascending numbers. Raises RowError for an invalid row."""
        for place in range(len(self._files)):
            begin, end = self._ends[place] - len(self._files[place]), self._ends[place]
            first, last = np.searchsorted(numbers, (begin, end))
            yield from self._files[place].read(numbers[first:last] - begin)

    def _find(self, number: int) -> tuple[_File, int]:
        place = int(np.searchsorted(self._ends, number, side="right"))
        return self._files[place], number - self._ends[place] + len(self._files[place])


def is_rows_file(path: Path, with_csv: bool) -> bool:
    """Return whether a file can hold rows, by its suffix."""
    return path.suffix.lower() in (*JSONL_SUFFIXES, *PARQUET_SUFFIXES, *(CSV_SUFFIXES if with_csv else ()))


def _opened(path: Path, csv_columns: Sequence[str] | None) -> _File:
    suffix = path.suffix.lower()
    if suffix in CSV_SUFFIXES:
        return _Csv(path, csv_columns or ())
    return _Parquet(path) if suffix in PARQUET_SUFFIXES else _Jsonl(path)


class _File(ABC):
    """The rows of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def __len__(self) -> int: ...

    def line(self, row: int) -> int:
        """Return the line of a row, counted from 1."""
        return row + 1

    @abstractmethod
    def read(self, numbers: np.ndarray) -> Iterator[Row]:
        """Yield the rows with these ascending numbers."""


class _Jsonl(_File):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        starts, lines, position = [], [], 0
        with _unless_refused(path), open_regular(path) as stream:
            for number, line in enumerate(iter(lambda: stream.readline(MOST_LINE_BYTES + 1), b""), 1):
                if len(line) > MOST_LINE_BYTES:
                    raise DataError(f"{path}:{number}: the line has more than {MOST_LINE_BYTES:,} bytes")
                if not line.removeprefix(_BOM).isspace():
                    starts.append(position)
                    lines.append(number)
                position += len(line)
        self._starts, self._lines = np.array(starts, np.int64), np.array(lines, np.int64)

    def __len__(self) -> int:
        return len(self._starts)

    def line(self, row: int) -> int:
        return int(self._lines[row])

    def read(self, numbers: np.ndarray) -> Iterator[Row]:
        with _unless_refused(self.path), open_regular(self.path) as stream:
            for start in self._starts[numbers].tolist():
                stream.seek(start)
                yield _json_object(stream.readline().removeprefix(_BOM))


def _json_object(line: bytes) -> Row:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: byte {error.start + 1} of the line is 0x{line[error.start]:02x}") from None
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON at character {error.pos + 1} ({error.msg}); each line must be one object") from None
    except (ValueError, RecursionError) as error:
        raise RowError(f"not JSON that can be read: {first_line(error)}") from None
    if not isinstance(row, dict):
        raise RowError("each line must be one JSON object")
    return row


class _Csv(_File):
    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        super().__init__(path)
        self._columns, self._rows, self._lines = tuple(columns), [], []
        try:
            with _unless_refused(path), io.TextIOWrapper(open_regular(path), "utf-8-sig", newline="") as stream:
                reader, before = csv.reader(text_lines(stream, path), strict=True), 0
                for row in reader:
                    if row:
                        self._rows.append(row)
                        self._lines.append(before + 1)
                    before = reader.line_num
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read as CSV: {first_line(error)}") from None

    def __len__(self) -> int:
        return len(self._rows)

    def line(self, row: int) -> int:
        return self._lines[row]

    def read(self, numbers: np.ndarray) -> Iterator[Row]:
        for number in numbers.tolist():
            row = self._rows[number]
            if len(row) != len(self._columns):
                raise RowError(f"{len(row)} columns; {len(self._columns)} are needed: {', '.join(self._columns)}")
            yield dict(zip(self._columns, row, strict=True))


class _Parquet(_File):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with _parquet(path) as file:
            groups = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        self._ends = np.cumsum([0, *groups])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, numbers: np.ndarray) -> Iterator[Row]:
        import pyarrow as pa

        with _parquet(self.path) as file:
            for group in np.unique(np.searchsorted(self._ends, numbers, side="right") - 1).tolist():
                begin, end = self._ends[group : group + 2]
                first, last = np.searchsorted(numbers, (begin, end))
                try:
                    table = file.read_row_group(group)
                    for number in (numbers[first:last] - begin).tolist():
                        yield table.slice(number, 1).to_pylist()[0]
                except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                    raise DataError(f"{self.path} cannot be read as parquet: {first_line(error)}") from None


def _parquet(path: Path) -> Any:
    # Imported here: it takes a while, and only parquet needs it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _unless_refused(path):
        check_regular(path)
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {first_line(error)}") from None
