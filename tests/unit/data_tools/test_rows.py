"""Rows by number from files of every kind: the same rows, each with the place that messages name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.rows import FileRows, RowError, reason_of

ROWS: list[dict[str, Any]] = [{"a": f"text {number}, café", "b": str(number)} for number in range(10)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    elif path.suffix == ".csv":
        path.write_text("\ufeff" + "\n\n".join('"{a}",{b}'.format(**row) for row in rows))
    else:
        path.write_text("\ufeff\n " + (f"[{','.join(lines)}]" if path.suffix == ".json" else "\n\n".join(lines)))
    return path


@pytest.mark.parametrize(
    ("suffix", "place"),
    [
        ("jsonl", "rows.jsonl:16"),
        ("json", "rows.json: item 8"),
        ("csv", "rows.csv:15"),
        ("parquet", "rows.parquet: row 8"),
    ],
)
def test_rows_of_two_files_have_numbers_and_line_positions(tmp_path: Path, suffix: str, place: str) -> None:
    first = write(tmp_path / "first.jsonl", ROWS[:4])
    rows = FileRows([first, write(tmp_path / f"rows.{suffix}", ROWS)], ("a", "b"))
    assert len(rows) == 14
    assert list(rows.read(np.arange(14))) == [*ROWS[:4], *ROWS]
    assert list(rows.read(np.array([1, 3, 4, 11]))) == [ROWS[1], ROWS[3], ROWS[0], ROWS[7]]
    assert (rows.place(3), rows.place(11)) == (f"{first}:8", f"{tmp_path}/{place}")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rows.json", b'[{"a": 1},\n{"a": ', r"rows\.json: a JSON list that cannot be read: Expecting value: line 2"),
        ("rows.json", b'[{"a": "\xff"}]', r"rows\.json: a JSON list that cannot be read: 'utf-8' codec can't decode"),
        ("rows.jsonl", b"[" * 100_000, r"rows\.jsonl: a JSON list that cannot be read: it is nested too deeply"),
        ("rows.parquet", b"PAR1", r"rows\.parquet cannot be read as parquet"),
    ],
)
def test_a_file_with_changed_content_is_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=problem):
        FileRows([tmp_path / name])


@pytest.mark.parametrize("name", ["pipe.jsonl", "pipe.csv", "pipe.parquet"])
def test_a_pipe_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name}: cannot be read: it is no regular file but a pipe"):
        FileRows([tmp_path / name], ("a", "b"))


def test_an_item_that_is_no_object_is_refused_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('[{"a": 1}, ["b"]]')
    rows = FileRows([tmp_path / "rows.json"])
    assert list(rows.read(np.array([0]))) == [{"a": 1}]
    with pytest.raises(RowError, match=r"a row is one JSON object, this one is \['b'\]"):
        list(rows.read(np.array([1])))


def test_a_reason_leaves_out_what_differs_from_row_to_row() -> None:
    told = [reason_of(RowError(f"not UTF-8: byte {byte:,} of the line is 0x{byte:02x}")) for byte in (0xE9, 0x1234)]
    assert told == ["not UTF-8: byte N of the line is N"] * 2
