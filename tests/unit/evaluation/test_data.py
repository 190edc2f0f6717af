"""Archives by address and checksum, from a real server."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from efficientbench.config.errors import ConfigError
from efficientbench.data_tools.errors import DataError
from efficientbench.evaluation.data import fetch_archive, find_data


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address at which a server gives its files."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def archive(names: dict[str, str]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, content in names.items():
            file.writestr(name, content)
    return stream.getvalue()


def test_an_archive_is_fetched_once(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    content = archive({"eval_bundle/core.yaml": "a", "eval_bundle/eval_data/b.jsonl": "b", "../outside": "c"})
    (folder / "b.zip").write_bytes(content)
    checksum = hashlib.sha256(content).hexdigest()
    found = fetch_archive(f"{address}/b.zip", checksum, tmp_path / "cache")
    assert (found / "eval_bundle" / "core.yaml").read_text() == "a"
    assert (found / "outside").read_text() == "c"
    assert not (tmp_path / "cache" / "outside").exists()
    (folder / "b.zip").unlink()
    assert fetch_archive(f"{address}/b.zip", checksum, tmp_path / "cache") == found
    # One folder in an archive is what it holds.
    content = archive({"eval_bundle/core.yaml": "a"})
    (folder / "c.zip").write_bytes(content)
    found = fetch_archive(f"{address}/c.zip", hashlib.sha256(content).hexdigest(), tmp_path / "cache")
    assert (found / "core.yaml").read_text() == "a"


def test_what_is_not_the_archive_is_refused(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    (folder / "b.zip").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"b\.zip: its SHA-256 is .*, not 0000"):
        fetch_archive(f"{address}/b.zip", "0" * 64, tmp_path / "cache")
    with pytest.raises(DataError, match="it is no zip archive"):
        fetch_archive(f"{address}/b.zip", hashlib.sha256(b"no archive").hexdigest(), tmp_path / "cache")
    with pytest.raises(DataError, match="cannot be fetched"):
        fetch_archive(f"{address}/none.zip", "0" * 64, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir() if not path.name.endswith(".lock")] == []
    with pytest.raises(ConfigError, match=r"b\.zip: add its checksum, .*#sha256="):
        find_data(f"{address}/b.zip", tmp_path)
    assert find_data(str(folder), tmp_path) == folder
    assert find_data(None, tmp_path) is None
