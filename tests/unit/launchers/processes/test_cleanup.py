"""Clean-up ends what a killed launcher leaves, and nobody else's processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.command_line import is_alive, until
from support.repository import ROOT

from efficientbench.launchers.processes.cleanup import LOG_VARIABLE, STOP_GRACE_S

# A rank that outlives its launcher, as one that hangs in a driver does, and that has started a helper.
RANK = """
import ctypes, signal, subprocess, sys, time
ctypes.CDLL(None).prctl(1, 0)
subprocess.Popen(["sleep", "300"])
signal.signal(signal.SIGTERM, {on_sigterm})
print("ready", flush=True)
time.sleep(300)
"""
LAUNCHER = """
import sys
from pathlib import Path
from efficientbench.config.schema import FaultsConfig
from efficientbench.launchers.processes.launch import launch
sys.exit(launch([sys.executable, sys.argv[1]], 2, None, Path(sys.argv[2]), FaultsConfig()))
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
# A rank whose helper leads a session of its own, as that of Weights & Biases does, and that needs it to save.
WITH_A_HELPER = """
import signal, subprocess, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
helper = subprocess.Popen(
    [sys.executable, "-c", "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit());"
     "print(flush=True); time.sleep(300)"], stdout=subprocess.PIPE, start_new_session=True)
helper.stdout.readline()
def stop(*_):
    time.sleep(1)
    if helper.poll() is None:
        (folder / "saved").touch()
    helper.kill()
    sys.exit()
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(300)
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def cleanup(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "launchers" / "cleanup.sh"), *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120)


def start(folder: Path, on_sigterm: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a launcher with two ranks; return it with the ranks and their helpers."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(RANK.format(on_sigterm=on_sigterm))
    command = [sys.executable, "-c", LAUNCHER, str(script), str(folder / "log")]
    launcher = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    family = psutil.Process(launcher.pid)
    # A helper that is not a program of its own yet has no environment to be known by.
    helpers = lambda: [each for each in family.children(recursive=True) if each.name() == "sleep"]  # noqa: E731
    until(lambda: len(helpers()) == 2 and len(family.children(recursive=True)) == 4, "two ranks with a helper each")
    return launcher, [process.pid for process in family.children(recursive=True)]


@pytest.fixture
def bystanders(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Somebody else's training, by every name that a careless clean-up looks for, and a run in another folder."""
    command = [sys.executable, "-c", "import time; time.sleep(300)", "train.py", "efficientbench.worker", str(tmp_path)]
    marked = {**os.environ, LOG_VARIABLE: str(tmp_path.with_name(f"{tmp_path.name}_2") / "run" / "log")}
    processes = [subprocess.Popen(command), subprocess.Popen(command, env=marked, start_new_session=True)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_processes_of_a_killed_launcher_are_ended(tmp_path: Path, bystanders: list[subprocess.Popen[bytes]]) -> None:
    launcher, family = start(tmp_path / "a run", "signal.SIG_IGN")
    launcher.kill()
    launcher.wait()
    printed = cleanup("--dry-run", str(tmp_path)).stdout
    assert printed.count(f"{tmp_path / 'a run'}: would end process ") == 4
    assert all(map(is_alive, family))
    # These ranks ignore the request, so the patience of 60 s is cut short.
    command = "import sys; from pathlib import Path; from efficientbench.launchers.processes.cleanup import clean; "
    command += "sys.exit(clean([Path(sys.argv[1])], False, grace_s=0.3))"
    done = subprocess.run([sys.executable, "-c", command, str(tmp_path)], env=ENVIRONMENT, check=False, timeout=120)
    assert done.returncode == 0
    assert not any(map(is_alive, family))
    assert [process.poll() for process in bystanders] == [None, None]
    again = cleanup(str(tmp_path))
    assert (again.returncode, again.stdout) == (0, f"no process of a run below {tmp_path} is left\n")


def test_ranks_without_a_launcher_are_signalled_together(tmp_path: Path) -> None:
    files = [str(tmp_path / "first"), str(tmp_path / "second")]
    marked = {**os.environ, LOG_VARIABLE: str(tmp_path / "run" / "log")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ASKED_TOGETHER, *order],
            env=marked,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for order in (files, files[::-1])
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    begin_s = time.monotonic()
    assert cleanup(str(tmp_path)).returncode == 0
    # All by themselves, and at once.
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
    assert time.monotonic() - begin_s < STOP_GRACE_S


def test_a_ranks_helper_process_lives_until_the_rank_has_saved(tmp_path: Path) -> None:
    marked = {**os.environ, LOG_VARIABLE: str(tmp_path / "run" / "log")}
    command = [sys.executable, "-c", WITH_A_HELPER, str(tmp_path)]
    rank = subprocess.Popen(command, env=marked, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert rank.stdout is not None
    assert rank.stdout.readline() == "ready\n"
    assert cleanup(str(tmp_path)).returncode == 0
    assert rank.wait(timeout=60) == 0
    assert (tmp_path / "saved").exists()


def test_cleanup_stops_a_running_launcher_and_its_ranks(tmp_path: Path) -> None:
    launcher, family = start(tmp_path / "run", "lambda *_: sys.exit(143)")
    done = cleanup(str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert launcher.wait(timeout=60) == 143
    assert not any(map(is_alive, family))


def test_cleanup_refuses_a_missing_folder(tmp_path: Path) -> None:
    done = cleanup(str(tmp_path / "absent"))
    assert (done.returncode, done.stderr) == (2, f"error: {tmp_path / 'absent'} is no folder\n")
