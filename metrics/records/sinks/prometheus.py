"""Shows a run's latest scalars to Prometheus, at an endpoint or in a file of node_exporter's textfile collector.

Names are those of TensorBoard: train/loss is the gauge efficientbench_train_loss, and a figure of the record, at the
run's end, efficientbench_record_<name>. Beside them stand efficientbench_step and efficientbench_running, which is 0
once the run has ended. Labels: run, and repeat where the run has several. Text format 0.0.4 of Prometheus.
"""

from __future__ import annotations

import re
import socketserver
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.files import write_whole

HOST = "127.0.0.1"
"""Where an endpoint without a host listens: on this machine alone."""
WRITTEN_EVERY_S = 5.0
"""Least time between two writings of the file; collectors read it every 15 s or so."""
REQUEST_S = 10.0
"""Time for a request to arrive."""
_ENDPOINT = re.compile(r"(?:(?P<host>[A-Za-z0-9._-]+):)?(?P<port>\d{1,5})")


def check_prometheus(target: str) -> None:
    """Raise MetricsError if a target is neither a port nor a folder that exists."""
    if _endpoint(target) is None and not Path(target).is_dir():
        raise MetricsError(
            f"prometheus: {target} is neither a port, as 9400 or HOST:9400, nor a folder that exists, such as that of "
            "node_exporter's textfile collector"
        )


def _endpoint(target: str) -> tuple[str, int] | None:
    """Return host and port; None where the target is no endpoint."""
    found = _ENDPOINT.fullmatch(target)
    return (found["host"] or HOST, int(found["port"])) if found and 0 < int(found["port"]) < 65_536 else None


class PrometheusLog:
    """Holds the latest value of each scalar of one run, and shows them.

    Once the training has begun, no failure to write ends it: a warning says that nothing more is written.

    Raises:
        MetricsError: the port cannot be opened, or the file cannot be written.
    """

    def __init__(self, target: str, name: str, repeat: str | None = None) -> None:
        """Open the endpoint or write the file.

        Args:
            target: a port, HOST:PORT, or a folder, in which the run gets `efficientbench_<name>.prom`.
            name: the run's name.
            repeat: the name of this repeat, such as 'seed_1'; None: the run has no others.
        """
        check_prometheus(target)
        labels = {"run": name} | ({"repeat": repeat} if repeat else {})
        self._labels = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        self._values: dict[str, float] = {"running": 1.0}
        self._file: Path | None = None
        self._server: _Server | None = None
        endpoint = _endpoint(target)
        if endpoint is None:
            self._file = Path(target) / f"efficientbench_{'_'.join(labels.values())}.prom"
            write_whole(self._file, self.text())
            self._written_s = time.monotonic()
            return
        try:
            self._server = _Server(endpoint, self)
        except OSError as error:
            raise MetricsError(f"prometheus: {target} cannot be opened ({error.strerror or error})") from None
        threading.Thread(target=self._server.serve_forever, name="prometheus", daemon=True).start()

    def scalars(self, axis: str, place: int, values: Mapping[str, float | None]) -> None:
        """Take the values of a step; skip a value of None, and the axis of tokens, which has the same ones."""
        if axis == "step":
            self._take({"step": place, **values})
            if self._file is not None and time.monotonic() - self._written_s >= WRITTEN_EVERY_S:
                self._write()

    def figures(self, values: Mapping[str, Any]) -> None:
        """Take the numbers of the recorded run; skip a figure of None."""
        numbers = {name: value for name, value in values.items() if type(value) in (int, float)}
        self._take({f"record/{name}": value for name, value in numbers.items()})

    def close(self) -> None:
        """Say that the run has ended, write the file, which stays, or close the endpoint."""
        self._take({"running": 0.0})
        if self._file is not None:
            self._write()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def text(self) -> str:
        """Return all values in Prometheus's text format."""
        lines = []
        for name, value in self._values.items():
            gauge = f"efficientbench_{re.sub('[^A-Za-z0-9_]', '_', name)}"
            lines.append(f"# TYPE {gauge} gauge\n{gauge}{{{self._labels}}} {value!r}\n")
        return "".join(lines)

    def _take(self, values: Mapping[str, float | None]) -> None:
        # A new mapping, since another thread may be reading the old one.
        self._values = self._values | {name: float(value) for name, value in values.items() if value is not None}

    def _write(self) -> None:
        assert self._file is not None
        self._written_s = time.monotonic()
        try:
            write_whole(self._file, self.text())
        except MetricsError as error:
            print(f"warning: Prometheus gets no more of this run: {error}", flush=True)
            self._file = None


class _Server(socketserver.ThreadingTCPServer):
    """Serves one log at /metrics; `http.server.HTTPServer` would ask for the host's name, which may take long."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, endpoint: tuple[str, int], log: PrometheusLog) -> None:
        self.log = log
        super().__init__(endpoint, _Request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has gone."""


class _Request(BaseHTTPRequestHandler):
    timeout = REQUEST_S

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "the metrics are at /metrics")
            return
        assert isinstance(self.server, _Server)
        content = self.server.log.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing on the run's terminal."""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
