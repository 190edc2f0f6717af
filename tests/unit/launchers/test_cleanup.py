"""What a killed launcher leaves is ended by its record, and nobody else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.repository import ROOT

# A rank that outlives its launcher, as one that hangs in a driver does, and that has started a helper.
RANK = """
import ctypes, signal, subprocess, sys, time
ctypes.CDLL(None).prctl(1, 0)
subprocess.Popen(["sleep", "300"])
signal.signal(signal.SIGTERM, {answer})
print("ready", flush=True)
time.sleep(300)
"""
LAUNCHER = """
import sys
from pathlib import Path
from efficientbench.launchers.processes.launch import launch
sys.exit(launch([sys.executable, sys.argv[1]], 2, None, Path(sys.argv[2])))
"""
# A rank that ends once another one has been asked to end as well, as ranks that save together do.
ASKED_TOGETHER = """
import signal, sys, time
from pathlib import Path
own, other = map(Path, sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: own.touch())
print("ready", flush=True)
while not (own.exists() and other.exists()):
    time.sleep(0.02)
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def cleanup(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "launchers" / "cleanup.sh"), *words]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Any) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


class Run:
    """A launcher with two ranks, and what its record says."""

    def __init__(self, folder: Path, answer: str) -> None:
        self.folder = folder
        self.record = folder / "log" / "processes_node0.json"
        script = folder / "train.py"
        folder.mkdir(parents=True)
        script.write_text(RANK.format(answer=answer))
        command = [sys.executable, "-c", LAUNCHER, str(script), str(folder / "log")]
        self.launcher = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        assert self.launcher.stdout is not None
        assert self.launcher.stdout.readline() == "ready\n"
        until(lambda: self.record.exists() and len(self.family()) == 5)

    def family(self) -> list[int]:
        """Launcher, ranks, and their helpers."""
        return [self.launcher.pid, *(child.pid for child in psutil.Process(self.launcher.pid).children(recursive=True))]


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's training, by every name that a careless clean-up looks for."""
    command = [sys.executable, "-c", "import time; time.sleep(300)", "train.py", "efficientbench.worker"]
    with subprocess.Popen(command) as process:
        yield process
        process.kill()


def test_what_a_killed_launcher_left_is_ended(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:
    run = Run(tmp_path / "a run", "signal.SIG_IGN")
    family = run.family()
    os.kill(run.launcher.pid, signal.SIGKILL)
    run.launcher.wait()
    assert sum(map(alive, family)) == 4
    told = cleanup("--dry-run", str(tmp_path))
    assert "2 of 3 recorded processes run" in told.stdout
    assert sum(map(alive, family)) == 4
    # These ranks ignore the request, so the patience of 60 s is cut short.
    command = "import sys; from pathlib import Path; from efficientbench.launchers.processes.cleanup import clean; "
    command += "sys.exit(clean([Path(sys.argv[1])], False, grace_s=0.3))"
    done = subprocess.run([sys.executable, "-c", command, str(tmp_path)], env=ENVIRONMENT, check=False, timeout=120)
    assert done.returncode == 0
    assert not any(map(alive, family))
    assert not run.record.exists()
    assert bystander.poll() is None
    again = cleanup(str(tmp_path))
    assert (again.returncode, again.stdout) == (0, f"no run has left a record of processes below {tmp_path}\n")


def test_ranks_without_their_launcher_are_asked_together(tmp_path: Path) -> None:
    from efficientbench.launchers.processes.cleanup import STOP_GRACE_S
    from efficientbench.launchers.processes.process_record import RecordedProcess, this_place

    asked = [str(tmp_path / "first"), str(tmp_path / "second")]
    ranks = [
        subprocess.Popen([sys.executable, "-c", ASKED_TOGETHER, *files], stdout=subprocess.PIPE, text=True)
        for files in (asked, asked[::-1])
    ]
    found: list[dict[str, Any]] = [{"pid": os.getpid(), "start_ticks": 0, "command": ["a launcher that is gone"]}]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
        process = RecordedProcess.of(rank.pid)
        assert process is not None
        found.append({"pid": process.pid, "start_ticks": process.start_ticks, "command": list(process.command)})
    record = tmp_path / "run" / "log" / "processes_node0.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"place": this_place(), "processes": found}))
    begin_s = time.monotonic()
    assert cleanup(str(tmp_path)).returncode == 0
    # All by themselves, and at once.
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
    assert time.monotonic() - begin_s < STOP_GRACE_S


def test_a_run_that_goes_on_is_asked_through_its_launcher(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "lambda *_: sys.exit(143)")
    done = cleanup(str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert run.launcher.wait(timeout=60) == 143
    assert not run.record.exists()


def test_a_run_that_ends_leaves_no_record(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "lambda *_: sys.exit(143)")
    os.kill(run.launcher.pid, signal.SIGTERM)
    assert run.launcher.wait(timeout=60) == 143
    assert not run.record.exists()


@pytest.mark.parametrize("changed", ["start_ticks", "command", "place"])
def test_a_number_that_is_another_process_now_is_left_alone(
    tmp_path: Path, bystander: subprocess.Popen[bytes], changed: str
) -> None:
    from efficientbench.launchers.processes.process_record import RecordedProcess, this_place

    found = RecordedProcess.of(bystander.pid)
    assert found is not None
    process = {"pid": found.pid, "start_ticks": found.start_ticks, "command": list(found.command)}
    other = {"start_ticks": found.start_ticks - 1, "command": [sys.executable, "train.py"], "place": "another boot"}
    content = {"place": this_place(), "processes": [process]}
    (content if changed == "place" else process)[changed] = other[changed]
    record = tmp_path / "run" / "log" / "processes_node0.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(content))
    assert cleanup(str(tmp_path)).returncode == 0
    assert bystander.poll() is None
    assert record.exists() == (changed == "place")


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"place": "", "processes": [{"pid": Infinity, "start_ticks": 1, "command": []}]}'],
)
def test_what_is_no_record_is_passed_over(tmp_path: Path, content: str) -> None:
    record = tmp_path / "log" / "processes_node0.json"
    record.parent.mkdir()
    record.write_text(content)
    done = cleanup(str(tmp_path))
    assert done.returncode == 0
    assert "is no record of processes" in done.stderr
    assert cleanup(str(tmp_path / "absent")).returncode == 2
