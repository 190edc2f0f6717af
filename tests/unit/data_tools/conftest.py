"""What several tests of the data tools share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from replicas.hub_server import HubState, hub_server
from support.downloads import SAMPLE, skip_where_downloads_are_refused, text_parquet


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubState]:
    """A hub with five parquet files and some others; this process sends its requests there."""
    skip_where_downloads_are_refused()
    files = {path: text_parquet(f"document of {path}", "another") for path in SAMPLE}
    files |= {
        "README.md": b"# about",
        "sample/10BT_old/000.parquet": b"no",
        "notes/words.jsonl": b'{"text": "a"}\n' * 9,
    }
    with hub_server(files) as state:
        template = state.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        changed = {"ENDPOINT": state.endpoint, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_OFFLINE": False}
        for name, value in {**changed, "HF_HUB_CACHE": str(tmp_path / "cache")}.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", "")
        yield state
