"""Tokenizers by name: a server on this machine speaks the hub's endpoints, and fails in several ways."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.repository import ROOT

from efficientbench.data_tools.tokenizer import load_tokenizer, train_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Has one repository, `owner/words`, with the files of `folder`; answers with `failure` where that is set."""

    folder: Path
    failure: int | None = None
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:  # noqa: N802
        self.do_GET()

    def do_GET(self) -> None:  # noqa: N802
        if self.failure:
            return self.answer(self.failure, b"", {"X-Error-Message": f"refused: {self.headers.get('Authorization')}"})
        files = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        if self.path.startswith("/api/models/owner/words"):
            tree = [{"type": "file", "path": name, "size": len(files[name]), "oid": ""} for name in files]
            info = {"id": "owner/words", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            return self.answer(200, json.dumps(tree if "/tree/" in self.path else info).encode())
        name = self.path.rpartition("/")[2]
        if self.path.startswith(f"/owner/words/resolve/{COMMIT}/") and name in files:
            return self.answer(200, files[name])
        return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        digest = hashlib.sha256(content).hexdigest()
        for key, value in {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT, **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    train_tokenizer(["some words"], 260, tmp_path / "words")
    handler = type("OneHub", (Hub,), {"folder": tmp_path / "words"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def load_by_name(name: str, endpoint: str, home: Path) -> str:
    """What a fresh process says: the fingerprint, or the error."""
    code = (
        f"from efficientbench.data_tools.tokenizer import *\ntry: print(load_tokenizer({name!r}).fingerprint)\n"
        "except DataError as error: print(error)"
    )
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_TOKEN": "hf_sesame"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    return done.stdout.strip()


def test_a_name_is_fetched_once_and_then_served_without_the_hub(hub: str, tmp_path: Path) -> None:
    expected = load_tokenizer(tmp_path / "words").fingerprint
    assert load_by_name("owner/words", hub, tmp_path / "home") == expected
    assert load_by_name("owner/words", "http://127.0.0.1:9", tmp_path / "home") == expected


def test_an_unknown_name_is_said(hub: str, tmp_path: Path) -> None:
    message = load_by_name("owner/nothing", hub, tmp_path / "home")
    assert message.startswith("'owner/nothing' is no folder here, and the Hugging Face hub has no such name")


def test_a_name_that_cannot_be_one_is_said(hub: str, tmp_path: Path) -> None:
    message = load_by_name("what is this?", hub, tmp_path / "home")
    assert message == "'what is this?' is neither a folder here nor a name that the Hugging Face hub could have"


@pytest.mark.parametrize("failure", ["no server", "server error"])
def test_a_failing_hub_is_reported(hub: str, tmp_path: Path, failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "failure", 503)
    message = load_by_name("owner/words", hub if failure == "server error" else "http://127.0.0.1:9", tmp_path / "home")
    assert message.startswith("'owner/words' is no folder here, and cannot be downloaded from the Hugging Face hub (")
    assert message.endswith("nor is it in the hub's local cache: give the path of a folder")


def test_a_token_that_a_server_repeats_is_not_said(hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "failure", 403)
    message = load_by_name("owner/words", hub, tmp_path / "home")
    assert "403 Forbidden: refused: Bearer <token>" in message
    assert "sesame" not in message
