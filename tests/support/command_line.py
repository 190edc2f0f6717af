"""The command line in processes of its own, as a user starts it, on models whose steps take milliseconds."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from support.repository import ROOT

from efficientbench.launchers.processes.failure import REPORT_VARIABLE
from efficientbench.launchers.processes.heartbeat import heartbeat_file, read_beat

TIME_LIMIT_S = 480

TINY = (
    "model.layers=2",
    "model.hidden_size=48",
    "model.heads=4",
    "model.head_dim=12",
    "model.ffn_hidden_size=80",
    "training.dtype=fp32",
    "training.seq_len=32",
    "training.micro_batch_size=2",
    "training.global_batch_size=4",
    "training.steps=6",
    "training.validation_interval=0",
    "training.validation_tokens=512",
    "measurement.warmup_steps=1",
    "measurement.min_steps=3",
    # Of several nodes 30 s otherwise.
    "faults.preflight_s=0",
)
LONG = ("training.steps=20000",)
"""More steps than any test waits for."""


@dataclass(frozen=True)
class Finished:
    """A run that has ended: its folder, and what it printed."""

    folder: Path
    done: subprocess.CompletedProcess[str]


def command(*words: str) -> list[str]:
    """The command line as this checkout has it, whatever else is installed."""
    return [sys.executable, "-m", "efficientbench.cli", *words]


def environment(**changes: str) -> dict[str, str]:
    """This process's, with this checkout before all else and one thread a process; `changes` on top."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ours = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return {**os.environ, **ours, **changes}


def efficientbench(
    *words: str,
    cwd: Path | None = None,
    limit_s: float = TIME_LIMIT_S,
    expect: int | None = None,
    stderr: str | None = None,
    **changes: str,
) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself, with the exit code `expect` and the text `stderr` where they are given."""
    done = subprocess.run(
        command(*words),
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
    )
    assert expect in (None, done.returncode), done.stdout + done.stderr
    assert stderr in (None, done.stderr), done.stderr
    return done


@contextmanager
def started(*words: str, **changes: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs while the block does; killed with all that it started where the block leaves it running."""
    process = subprocess.Popen(
        command(*words), env=environment(**changes), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    family = [process.pid]
    try:
        yield process
    finally:
        family += [child.pid for child in children(process.pid)]
        for pid in family if process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=TIME_LIMIT_S)


def interrupted(folder: Path, words: tuple[str, ...], how: signal.Signals, after: int) -> int:
    """Start a run, end it after `after` steps (SIGTERM: by its launcher, else by a rank), and return its exit code."""
    with started(*words) as run:
        wait_for_steps(folder, after, run)
        os.kill(run.pid if how == signal.SIGTERM else workers(run.pid)[0].pid, how)
        run.communicate(timeout=TIME_LIMIT_S)
    return run.returncode


def children(pid: int) -> list[psutil.Process]:
    """The processes below `pid`; none where it has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def words_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process; nothing of one that has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def workers(pid: int) -> list[psutil.Process]:
    """The ranks that the run with this process id has started, in the order of their numbers."""
    return sorted(psutil.Process(pid).children(), key=lambda worker: int(worker.environ()["RANK"]))


def steps(folder: Path, file: str = "steps.jsonl") -> list[dict[str, Any]]:
    """The finished lines of `steps.jsonl`, or of a copy of it; none before it is there."""
    path = folder / file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def losses(folder: Path, file: str = "steps.jsonl") -> list[float]:
    """The training loss of every step."""
    return [line["loss"] for line in steps(folder, file) if line["kind"] == "step"]


def record(folder: Path) -> dict[str, Any]:
    """`record.json` as it lies there."""
    return _content(folder / "record.json")


def failure(folder: Path) -> dict[str, Any]:
    """`failure.json` as it lies there."""
    return _content(folder / "failure.json")


def _content(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def damage(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
    return port


def wait_for_steps(folder: Path, count: int, process: subprocess.Popen[Any]) -> None:
    """Returns once a run has trained `count` steps; fails where it ends before."""
    until(lambda: len(losses(folder)) >= count or process.poll() is not None, f"{count} steps in {folder}")
    assert process.poll() is None, process.communicate()


def stop_in_a_step(worker: psutil.Process, sent: signal.Signals = signal.SIGSTOP) -> None:
    """Stop or kill a rank once it has told its launcher, which it does twice a second, that it is in a step."""
    file = heartbeat_file(Path(worker.environ()[REPORT_VARIABLE]))
    until(lambda: (beat := read_beat(file, "")) is not None and beat.step >= 2, "a heartbeat in a step")
    worker.send_signal(sent)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that nobody has waited for does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def until(condition: Any, what: str, limit_s: float = TIME_LIMIT_S) -> None:
    """Returns once `condition()` holds; fails after `limit_s` seconds."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.05)
