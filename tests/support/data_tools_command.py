"""`python -m data_tools` in processes of its own, as a user starts it, with a hub on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

from support.repository import ROOT


def start(endpoint: str, *arguments: object, token: str = "") -> subprocess.Popen[str]:
    """A command whose hub is at `endpoint`."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONSAFEPATH": "1",
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DOWNLOAD_TIMEOUT": "300",  # a busy machine is no silent server
        "HF_TOKEN": token,
        "COLUMNS": "100",
    }
    command = [sys.executable, "-m", "data_tools", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, output and errors of a command that ends by itself."""
    out, error = process.communicate(timeout=300)
    assert "Traceback" not in error, error
    return process.returncode, out, error


def run(*arguments: object) -> tuple[int, str, str]:
    """Exit status, output and errors of a command without a hub."""
    return finish(start("http://127.0.0.1:9", *arguments))
