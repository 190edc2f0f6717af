"""Downloads in this process from a hub on this machine, with little patience."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub import constants
from support.hub_server import REPOSITORY, HubState, hub_server

from efficientbench.data_tools.download import DownloadRequest, download_dataset
from efficientbench.data_tools.download.hub_requests import Patience

PATIENCE = Patience(attempts=4, first_wait_s=0.01)
SAMPLE = [f"sample/10BT/00{number}_00000.parquet" for number in range(5)]


def parquet(*texts: str) -> bytes:
    """A parquet file with a column `text`, not compressible below a few kilobytes."""
    buffer = io.BytesIO()
    noise = [os.urandom(2000).hex() for _ in texts]
    pyarrow.parquet.write_table(pyarrow.table({"text": list(texts), "id": noise}), buffer, compression="none")
    return buffer.getvalue()


@contextmanager
def hub_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubState]:
    """A hub with five parquet files and some others; this process asks it."""
    files = {path: parquet(f"document of {path}", "another") for path in SAMPLE}
    files |= {
        "README.md": b"# about",
        "sample/10BT_old/000.parquet": b"no",
        "notes/words.jsonl": b'{"text": "a"}\n' * 9,
    }
    with hub_server(files) as state:
        monkeypatch.setattr(constants, "ENDPOINT", state.endpoint)
        template = state.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "")
        yield state


def download(folder: Path, num_files: int = 1, **more: str | int | None) -> list[Path]:
    """Download the first files of the hub's dataset."""
    words = {"repository": REPOSITORY, "folder": folder, "num_files": num_files, **more}
    return download_dataset(DownloadRequest(**words), PATIENCE)  # type: ignore[arg-type]


def partials(folder: Path) -> list[Path]:
    """The files that have begun."""
    return sorted(folder.rglob("*.partial"))
