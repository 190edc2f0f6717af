"""A ModelScope with one repository on this machine, which answers what ModelScope's own client asks."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from huggingface_hub import constants
from support.downloads import skip_where_downloads_are_refused

from efficientbench.data_tools.download import model_files, modelscope
from efficientbench.data_tools.download.hub_requests import Patience


@dataclass
class Site:
    """What the server has, and what it was asked: (path, parameters, headers in lower case)."""

    files: dict[str, bytes]
    kind: str = "datasets"
    endpoint: str = ""
    asked: list[tuple[str, dict[str, str], dict[str, str]]] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)
    """What every row of a listing has in place of the right values."""
    breaks: int = 0
    """So many answers with a file break off after 1,000 bytes."""
    served: bytes | None = None
    """In place of every file."""


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:  # noqa: N802
        site, address = self.site, urlsplit(self.path)
        asked, headers = dict(parse_qsl(address.query)), {key.lower(): value for key, value in self.headers.items()}
        site.asked.append((address.path, asked, headers))
        start = f"/api/v1/{site.kind}/"
        of_branch = asked.get("Revision") == "master"
        if address.path == f"{start}owner/some" and site.kind == "datasets":
            self._data({"Id": 4711, "Type": 1})
        elif address.path == f"{start}4711/repo/tree" and of_branch and asked["Recursive"] == "True":
            first = (int(asked["PageNumber"]) - 1) * int(asked["PageSize"])
            self._data({"Files": self._rows()[first : first + int(asked["PageSize"])]})
        elif address.path == f"{start}owner/some/repo/files" and of_branch and site.kind == "models":
            self._data({"Files": self._rows()})
        elif address.path == f"{start}owner/some/repo" and of_branch and asked["FilePath"] in site.files:
            self._file(site.files[asked["FilePath"]] if site.served is None else site.served, headers)
        elif address.path == f"{start}owner/closed/repo/files":
            self._answer(200, json.dumps({"Code": 10010205001, "Message": "closed", "Success": False}).encode())
        else:
            self._answer(404, b'{"Code": 10010205001, "Message": "not found", "Success": false}')

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [{"Path": "data", "Name": "data", "Type": "tree", "Size": 0, "Sha256": ""}]
        for path, content in self.site.files.items():
            found = {"Size": len(content), "Sha256": hashlib.sha256(content).hexdigest()}
            rows.append({"Path": path, "Name": Path(path).name, "Type": "blob", **found, **self.site.row})
        return rows

    def _data(self, data: Any) -> None:
        self._answer(200, json.dumps({"Code": 200, "Data": data, "Success": True}).encode())

    def _file(self, content: bytes, headers: dict[str, str]) -> None:
        begin = int(headers.get("range", "bytes=0-")[len("bytes=") : -1])
        extra = {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"} if begin else {}
        broken, self.site.breaks = self.site.breaks > 0, self.site.breaks - 1
        self._answer(206 if begin else 200, content[begin:], extra, 1000 if broken else None)

    def _answer(
        self, status: int, content: bytes, headers: dict[str, str] | None = None, end: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[:end])

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def served(files: dict[str, bytes], kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A ModelScope with one repository, to which this process sends its requests."""
    skip_where_downloads_are_refused()
    site = Site(files, kind)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneSite", (_Handler,), {"site": site}))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_sesame")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(model_files, "_FEW", Patience(attempts=2, first_wait_s=0.01))
    monkeypatch.setattr(modelscope, "PAGE", 3)
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
