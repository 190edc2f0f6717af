"""Parquet files as JSONL, one object a row with all of its columns."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from efficientbench.data_tools.errors import DataError, first_line
from efficientbench.data_tools.files import exclusive_lock

_ROWS_AT_ONCE = 1024


def jsonl_copy(parquet: Path, target: Path) -> bool:
    """Write the rows of a parquet file to `target`, unless a copy of this very file lies there; whether it wrote.

    A copy has the time of its source's last change, so a copy of an older version is made again.

    Raises:
        DataError: the file cannot be read, or holds text that is not UTF-8.
        OSError: the disk refuses.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    with exclusive_lock(target.parent / ".lock"):
        source = parquet.stat()
        if target.exists() and target.stat().st_mtime_ns == source.st_mtime_ns:
            return False
        with partial.open("w", encoding="utf-8") as stream:
            for row in _rows(parquet):
                stream.write(json.dumps(_finite(row), ensure_ascii=False, default=str) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.utime(partial, ns=(source.st_atime_ns, source.st_mtime_ns))
        os.replace(partial, target)
    return True


def _rows(parquet: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(parquet) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{parquet} cannot be written as JSONL: {first_line(error)}") from None


def _finite(value: Any) -> Any:
    """The value, with null for numbers that are none or infinite, at any depth: JSON has no word for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value
