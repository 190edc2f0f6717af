"""Archives by address and checksum, from a real server."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.evaluation.data import fetch_archive, find_data


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


class BreaksOff(BaseHTTPRequestHandler):
    """Gives one file, also from a byte on; its first answer ends in the middle."""

    def __init__(self, *arguments: Any, content: bytes, asked: list[str | None]) -> None:
        self.content, self.asked = content, asked
        super().__init__(*arguments)

    def do_GET(self) -> None:  # noqa: N802
        self.asked.append(self.headers.get("Range"))
        rest = self.content[int((self.asked[-1] or "bytes=0-")[6:-1]) :]
        if not rest:
            self.send_error(416)
            return
        self.send_response(200 if self.asked[-1] is None else 206)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest[: len(rest) // 2] if len(self.asked) == 1 else rest)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address at which a handler answers while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address at which a server gives its files."""
    folder = tmp_path / "served"
    folder.mkdir()
    with serving(partial(Quiet, directory=str(folder))) as address:
        yield folder, address


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


def test_a_file_that_is_not_the_archive_is_refused(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    (folder / "b.zip").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"b\.zip: its SHA-256 is .*, not 0000"):
        fetch_archive(f"{address}/b.zip", "0" * 64, tmp_path / "cache")
    with pytest.raises(DataError, match="it is no zip archive"):
        fetch_archive(f"{address}/b.zip", hashlib.sha256(b"no archive").hexdigest(), tmp_path / "cache")
    with pytest.raises(DataError, match="download failed"):
        fetch_archive(f"{address}/none.zip", "0" * 64, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir() if not path.name.endswith(".lock")] == []
    with pytest.raises(ConfigError, match=r"b\.zip: add its checksum, .*#sha256="):
        find_data(f"{address}/b.zip", tmp_path)
    with pytest.raises(ConfigError, match=r"--data: http://\[b#sha256=00: Invalid IPv6 URL"):
        find_data("http://[b#sha256=00", tmp_path)
    assert find_data(str(folder), tmp_path) == folder
    assert find_data(None, tmp_path) is None


def kept(cache: Path) -> dict[str, int]:
    """The sizes of the files in a cache by their names, without locks."""
    return {path.name: path.stat().st_size for path in cache.iterdir() if path.suffix != ".lock"}


def test_an_interrupted_download_resumes(tmp_path: Path) -> None:
    content, cache = archive({"core.yaml": "a" * 5000}), tmp_path / "cache"
    checksum, half = hashlib.sha256(content).hexdigest(), len(content) // 2
    asked: list[str | None] = []
    with serving(partial(BreaksOff, content=content, asked=asked)) as address:
        with pytest.raises(DataError, match=r"b\.zip: download failed: .*; run the same command again to resume"):
            fetch_archive(f"{address}/b.zip", checksum, cache)
        assert kept(cache) == {f"{checksum}.zip.partial": half}
        assert (fetch_archive(f"{address}/b.zip", checksum, cache) / "core.yaml").read_text() == "a" * 5000
        assert asked == [None, f"bytes={half}-"]
        # It was whole, and the call ended before it was unpacked.
        (cache / checksum / "core.yaml").unlink()
        (cache / checksum).rmdir()
        (cache / f"{checksum}.zip.partial").write_bytes(content)
        assert (fetch_archive(f"{address}/b.zip", checksum, cache) / "core.yaml").is_file()
        assert asked[2:] == [f"bytes={len(content)}-"]
    assert kept(cache).keys() == {checksum}


def test_partial_bytes_of_another_file_are_dropped(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    content, cache = archive({"core.yaml": "a"}), tmp_path / "cache"
    (folder / "b.zip").write_bytes(content)
    checksum = hashlib.sha256(content).hexdigest()
    cache.mkdir()
    # This server gives whole files alone.
    (cache / f"{checksum}.zip.partial").write_bytes(b"another")
    assert (fetch_archive(f"{address}/b.zip", checksum, cache) / "core.yaml").is_file()
    with serving(partial(BreaksOff, content=content, asked=[None])) as other:
        (cache / f"{'0' * 64}.zip.partial").write_bytes(b"another")
        with pytest.raises(DataError, match="nothing was kept"):
            fetch_archive(f"{other}/b.zip", "0" * 64, tmp_path / "cache")
    assert kept(cache).keys() == {checksum}


def test_an_archive_that_cannot_be_unpacked_is_named(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    cache, content = tmp_path / "cache", archive({"core.yaml": "a" * 5000})
    (folder / "b.zip").write_bytes(content)
    with pytest.raises(DataError, match=r"b\.zip: it holds 5,000 bytes, and at most 4,999 are unpacked"):
        fetch_archive(f"{address}/b.zip", hashlib.sha256(content).hexdigest(), cache, 4_999)
    # The flag of a file that needs a password, in the file's own header and in the list of files.
    locked = bytearray(content)
    for flag in (6, content.index(b"PK\x01\x02") + 8):
        locked[flag] |= 1
    (folder / "c.zip").write_bytes(locked)
    with pytest.raises(DataError, match=r"c\.zip: it cannot be unpacked: .*password"):
        fetch_archive(f"{address}/c.zip", hashlib.sha256(locked).hexdigest(), cache)
    with pytest.raises(DataError, match="download failed: nonnumeric port"):
        fetch_archive("http://127.0.0.1:abc/b.zip", "0" * 64, cache)
    assert kept(cache) == {}
