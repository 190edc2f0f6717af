"""A rank's process, started as the launcher starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository import ROOT

from efficientbench.config.schema import FaultsConfig
from efficientbench.launchers.processes.failure import REPORT_VARIABLE
from efficientbench.launchers.processes.launch import launch

WORK = """
from pathlib import Path
from efficientbench.launchers.processes.failure import Failure
from efficientbench.running.rank_process import Work
{on_import}

def rank_work(job_file):
    return Work(job_file.parent, lambda rank: False, lambda error, log: Failure("crash", str(error)))
"""


def ended(folder: Path, on_import: str) -> subprocess.CompletedProcess[str]:
    """A rank whose work module does something when it is imported; nobody reads its stdout."""
    (folder / "some_work.py").write_text(WORK.format(on_import=on_import))
    place = {"RANK": "0", "LOCAL_RANK": "0", REPORT_VARIABLE: str(folder / "report.json")}
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        return subprocess.run(
            [sys.executable, "-m", "efficientbench.running", "some_work", str(folder / "job.json")],
            env={**os.environ, **place, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])},
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
        )


def test_what_a_module_prints_when_imported_may_have_lost_its_reader(tmp_path: Path) -> None:
    done = ended(tmp_path, 'print("hello")')
    assert (done.returncode, done.stderr) == (0, "")


def test_a_rank_that_cannot_start_its_heartbeat_reports_it(tmp_path: Path) -> None:
    done = ended(tmp_path, "import threading; threading.stack_size(1 << 46)")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads((tmp_path / "report.json").read_text())["reason"] == "can't start new thread"


WRITES = """
import os, subprocess, sys, time
from functools import partial
from efficientbench.generation.rank import write_patiently
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.running.rank_process import Rank
reader = subprocess.Popen(["sh", "-c", "sleep 7; wc -c"], stdin=subprocess.PIPE)
os.dup2(reader.stdin.fileno(), 1)
reader.stdin.close()
rank = Rank(0, 0, HeartbeatWriter(), lambda: False)
rank.report("computing")
rank.heartbeat.start()
{write}("x" * 1_000_000)
os.close(1)
reader.wait()
"""


@pytest.mark.proof
@pytest.mark.parametrize(
    ("write", "code"), [("partial(write_patiently, rank.report)", 0), ("partial(print, end='', flush=True)", 1)]
)
def test_a_rank_whose_reader_waits_does_not_hang(
    write: str, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", WRITES.format(write=write)]
    assert launch(command, 1, None, tmp_path, FaultsConfig(hang_limit_s=4)) == code
    out, errors = capfd.readouterr()
    assert (out, errors) == ("1000000\n", "") if code == 0 else "hung: made no progress" in errors
