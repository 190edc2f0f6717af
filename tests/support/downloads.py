"""Downloads in this process from a hub on this machine, with little patience."""

from __future__ import annotations

import io
import os
from pathlib import Path

import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest
from packaging.version import Version
from replicas.hub_server import REPOSITORY

from efficientbench.data_tools.download import DownloadRequest, download_dataset
from efficientbench.data_tools.download.hub_requests import Patience

PATIENCE = Patience(attempts=4, first_wait_s=0.01)
SAMPLE = [f"sample/10BT/00{number}_00000.parquet" for number in range(5)]


def skip_where_downloads_are_refused() -> None:
    """Skip the test where the hub's library is too old for downloads, which are then refused."""
    if Version(huggingface_hub.__version__).major < 1:
        pytest.skip(f"huggingface_hub {huggingface_hub.__version__} is too old for downloads")


def parquet(table: pyarrow.Table) -> bytes:
    """The content of a parquet file, not compressed."""
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="none")
    return buffer.getvalue()


def text_parquet(*texts: str) -> bytes:
    """A parquet file with a column `text`, not compressible below a few kilobytes."""
    return parquet(pyarrow.table({"text": list(texts), "id": [os.urandom(2000).hex() for _ in texts]}))


def download(folder: Path, num_files: int = 1, **more: str | int | None) -> list[Path]:
    """Download the first files of the hub's dataset."""
    return download_dataset(
        DownloadRequest(**{"repository": REPOSITORY, **more}, folder=folder, num_files=num_files), PATIENCE
    )  # type: ignore[arg-type]


def partials(folder: Path) -> list[Path]:
    """The files that have begun."""
    return sorted(folder.rglob("*.partial"))
