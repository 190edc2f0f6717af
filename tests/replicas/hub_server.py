"""A Hugging Face hub on this machine, with one repository and a storage of its own origin, that fails on request."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

REPOSITORY = "HuggingFaceFW/fineweb-edu"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PAGE = 2
"""Rows of a page of the tree's listing."""


@dataclass(frozen=True)
class Fault:
    """How one answer is wrong; each field alone.

    status, headers: answered instead of the content.
    break_after: the connection breaks after so many bytes of the body.
    length: what `Content-Length` (for a HEAD of the hub, `X-Linked-Size`) says, whatever the body's length is.
    content: served instead of the file, with the file's ETag and this content's length.
    etag: the storage's ETag.
    whole: the request's range is ignored.
    unconditional: the request's range is served, whatever content it is meant for (`If-Range`).
    pause_s: the wait between the two halves of the body.
    drip_s: the wait after each byte of the body.
    rows: listed instead of the files; a page that names itself as the next one.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    break_after: int | None = None
    length: int | None = None
    content: bytes | None = None
    etag: str | None = None
    whole: bool = False
    unconditional: bool = False
    pause_s: float = 0
    drip_s: float = 0
    rows: list[Any] | None = None


@dataclass
class HubState:
    """What the server has, and what it was asked.

    kind, repository: of the one repository, `datasets` or `models`, and OWNER/NAME.
    files: by path; those with a dot-parquet or dot-zst name lie in large-file storage.
    faults: by kind of request (info, tree, resolve, storage), how the next answers are wrong; None is a right one.
    always: by kind, how every answer is wrong once the faults are used up.
    requests: (kind, path, headers in lower case), in the order of arrival.
    """

    files: dict[str, bytes]
    kind: str = "datasets"
    repository: str = REPOSITORY
    card: dict[str, Any] = field(default_factory=dict)
    revisions: tuple[str, ...] = ("main", "v1.2.0")
    token: str | None = None
    faults: dict[str, list[Fault | None]] = field(default_factory=dict)
    always: dict[str, Fault] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    endpoint: str = ""
    storage: str = ""

    def fault(self, kind: str) -> Fault:
        """The next fault of a kind, used up."""
        queue = self.faults.get(kind)
        return (queue.pop(0) if queue else self.always.get(kind)) or Fault()

    def asked(self, kind: str) -> list[dict[str, str]]:
        """The headers of the requests of a kind."""
        return [headers for each, _, headers in self.requests if each == kind]


def is_large(path: str) -> bool:
    """Whether a file lies in large-file storage."""
    return path.endswith((".parquet", ".zst"))


def git_blob_sha1(content: bytes) -> str:
    """The name that git gives a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    state: HubState
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer's body waits 40 ms for the client to acknowledge its head

    def do_HEAD(self) -> None:  # noqa: N802
        self.do_GET()

    def do_GET(self) -> None:  # noqa: N802
        path = unquote(urlsplit(self.path).path)
        headers = {key.lower(): value for key, value in self.headers.items()}
        kind, repository = self.state.kind, self.state.repository
        api = f"/api/{kind}/{repository}"
        if path == api:
            path += "/revision/main"
        resolve = f"/{repository}/resolve/{COMMIT}/" if kind == "models" else f"/{kind}/{repository}/resolve/{COMMIT}/"
        starts = {
            "info": f"{api}/revision/",
            "tree": f"{api}/tree/{COMMIT}",
            "resolve": resolve,
            "storage": "/storage/",
        }
        kind = next((kind for kind, start in starts.items() if path.startswith(start)), "unknown")
        self.state.requests.append((kind, path, headers))
        fault = self.state.fault(kind)
        wanted = None if kind == "storage" else self.state.token
        if fault.status is not None:
            echo = {"X-Error-Message": f"refused: {headers.get('authorization', '')}"}
            self._answer(fault.status, b"", {**echo, **fault.headers})
        elif wanted not in (None, headers.get("authorization", "").split(" ")[-1]):
            self._answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        else:
            getattr(self, f"_{kind}")(path.removeprefix(starts.get(kind, "")), fault, headers)

    def _unknown(self, path: str, fault: Fault, headers: dict[str, str]) -> None:
        self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _info(self, revision: str, fault: Fault, headers: dict[str, str]) -> None:
        if revision not in (*self.state.revisions, COMMIT):
            return self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        siblings = [{"rfilename": path} for path in self.state.files]
        info = {"id": self.state.repository, "sha": COMMIT, "cardData": self.state.card, "siblings": siblings}
        return self._answer(200, fault.content if fault.content is not None else json.dumps(info).encode(), fault=fault)

    def _tree(self, folder: str, fault: Fault, headers: dict[str, str]) -> None:
        folder = folder.strip("/")
        paths = [path for path in sorted(self.state.files) if not folder or path.startswith(f"{folder}/")]
        if not paths:
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        start = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        rows: list[dict[str, Any]] = (
            [{"type": "directory", "path": "sample", "size": 0, "oid": "0"}] if not start else []
        )
        for path in paths[start : start + PAGE]:
            content = self.state.files[path]
            row = {"type": "file", "path": path, "size": len(content), "oid": git_blob_sha1(content)}
            if is_large(path):
                row["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            rows.append(row)
        link = {}
        if fault.rows is not None:
            rows, paths = fault.rows, [""] * (start + PAGE + 1)
        if start + PAGE < len(paths):
            base = f"{self.state.endpoint}{urlsplit(self.path).path}"
            link = {"Link": f'<{base}?recursive=True&cursor={start + PAGE}>; rel="next"'}
        return self._answer(200, json.dumps(rows).encode(), link, fault)

    def _resolve(self, path: str, fault: Fault, headers: dict[str, str]) -> None:
        if path not in self.state.files:
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        content = self.state.files[path]
        if not is_large(path):
            return self._content(content, git_blob_sha1(content), fault, headers)
        linked = {
            "X-Linked-Size": str(fault.length or len(content)),
            "X-Linked-ETag": f'"{fault.etag or hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Location": f"{self.state.storage}/storage/{path}?Signature=sesame",
        }
        return self._answer(302, b"", linked)

    def _storage(self, path: str, fault: Fault, headers: dict[str, str]) -> None:
        if "authorization" in headers:  # as S3 does, where an address is signed already
            return self._answer(400, b"")
        content = self.state.files[path]
        return self._content(content, hashlib.md5(content).hexdigest(), fault, headers)

    def _content(self, content: bytes, etag: str, fault: Fault, headers: dict[str, str]) -> None:
        etag = f'"{fault.etag or etag}"'
        content = content if fault.content is None else fault.content
        answer = {"ETag": etag, "X-Repo-Commit": COMMIT}
        start = int(headers.get("range", "bytes=0-")[len("bytes=") : -1])
        status = 200
        is_same = fault.unconditional or headers.get("if-range", etag) == etag
        if start and not fault.whole and is_same:
            if start >= len(content):
                return self._answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            answer["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            status, content = 206, content[start:]
        return self._answer(status, content, answer, fault)

    def _answer(
        self, status: int, content: bytes, headers: dict[str, str] | None = None, fault: Fault | None = None
    ) -> None:
        fault = fault or Fault()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content) if fault.length is None else fault.length))
        self.end_headers()
        if self.command == "HEAD":
            return
        sent = content[: fault.break_after]
        while fault.drip_s and sent:
            self.wfile.write(sent[:1])
            self.wfile.flush()
            time.sleep(fault.drip_s)
            sent = sent[1:]
        self.wfile.write(sent[: len(sent) // 2])
        time.sleep(fault.pause_s)
        self.wfile.write(sent[len(sent) // 2 :])
        if fault.break_after is not None or fault.length not in (None, len(content)):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: clients that are killed break their connections."""


@contextmanager
def hub_server(files: dict[str, bytes]) -> Iterator[HubState]:
    """A running hub with these files, which can be changed while it runs."""
    state = HubState(files)
    handler = type("OneHub", (_Handler,), {"state": state})
    servers = [_Server(("127.0.0.1", 0), handler) for _ in range(2)]
    state.endpoint, state.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield state
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
