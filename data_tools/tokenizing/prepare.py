"""Downloads a dataset, tokenizes it, and copies its parquet files as JSONL, in one call."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from efficientbench.basics.files import complete_file, exclusive_lock
from efficientbench.data_tools.download import DownloadRequest, download_dataset
from efficientbench.data_tools.rows import open_parquet
from efficientbench.data_tools.tokens.manifest import Corpus

_ROWS_AT_ONCE = 64

logger = logging.getLogger(__name__)


def prepare_dataset(
    request: DownloadRequest, tokenize: Callable[[Sequence[Path]], Corpus], jsonl_folder: Path | None = None
) -> Corpus:
    """Download a dataset, tokenize it, and copy its parquet files as JSONL if wanted.

    Each step keeps its finished work, so that a call after an interruption resumes.

    Args:
        request: The dataset, and the folder for its files.
        tokenize: Makes the corpus of the files, like `tokenize_files` with its other arguments.
        jsonl_folder: The folder for the copies, under the files' paths in the dataset; None for no copies.

    Raises:
        DataError: a step failed.
        OSError: a copy cannot be written.
    """
    files = download_dataset(request)
    corpus = tokenize(files)
    if jsonl_folder is not None:
        for file in files:
            if file.suffix != ".parquet":
                continue
            target = (jsonl_folder / file.relative_to(request.folder)).with_suffix(".jsonl")
            if copy_as_jsonl(file, target):
                logger.info("copied to %s", target)
    return corpus


def copy_as_jsonl(parquet: Path, target: Path) -> bool:
    """Write the rows of a parquet file, with all columns, as JSONL; return False if `target` is its copy already.

    A copy has its source's modification time, so a changed source is copied again.

    Raises:
        DataError: the file cannot be read, or contains text that is not UTF-8.
        OSError: `target` cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(target.parent / ".lock"):
        source = parquet.stat()
        if target.exists() and target.stat().st_mtime_ns == source.st_mtime_ns:
            return False
        with complete_file(target) as stream:
            with open_parquet(parquet) as file:
                for row in (row for batch in file.iter_batches(_ROWS_AT_ONCE) for row in batch.to_pylist()):
                    stream.write((json.dumps(_finite(row), ensure_ascii=False, default=str) + "\n").encode())
            stream.flush()  # a later write would change the time
            os.utime(stream.fileno(), ns=(source.st_atime_ns, source.st_mtime_ns))
    return True


def _finite(value: Any) -> Any:
    """Return the value with null in place of NaN and infinity, at any depth: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value
