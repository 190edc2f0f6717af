"""The queue on disk: who may run what, after whatever end; and how ends are told."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console
from support.command_line import until

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.running.output_folder import OutputFolder
from efficientbench.sweep.child import Child
from efficientbench.sweep.machine import Machine, parallel_runs, slot_environment, slots, slots_needed
from efficientbench.sweep.progress import Display
from efficientbench.sweep.queue import Queue, State, failure_of
from efficientbench.sweep.scheduler import Manner, Scheduler
from efficientbench.sweep.tasks import TrainingTask

GPUS = Machine("gpu", "a GPU", ("2", "3", "GPU-5"), 80 * 10**9, 0, "VISIBLE")
CPU = Machine("cpu", "a CPU", ("0",), None, 0, None)


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    made = Queue(tmp_path)
    made.make()
    return made


def test_a_claim_is_exclusive_and_free_after_release(queue: Queue) -> None:
    claim = queue.claim("run")
    assert claim is not None
    assert (Queue(queue.folder.parent).claim("run"), queue.claim("other") is not None) == (None, True)
    claim.release()
    assert queue.claim("run") is not None


@pytest.mark.parametrize("name", ["queue", "run_mine"])
def test_a_lock_that_cannot_be_opened_is_reported(queue: Queue, name: str) -> None:
    lock = queue.folder / "locks" / f"{name}.lock"
    lock.mkdir()
    told = rf"output: {re.escape(str(lock))} cannot be written: Is a directory"
    with pytest.raises(ConfigError, match=told), queue.changing():
        queue.claim("mine")


def test_the_claim_of_a_killed_sweep_is_free_once_its_child_has_ended(queue: Queue) -> None:
    """The child holds the claim too: nobody else starts the run while it still saves."""
    program = (
        "import subprocess, sys, time; from pathlib import Path; from efficientbench.sweep.queue import Queue\n"
        "claim = Queue(Path(sys.argv[1])).claim('run')\n"
        "child = subprocess.Popen(['sleep', '60'], pass_fds=claim.descriptors)\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    arguments = [sys.executable, "-c", program, str(queue.folder.parent)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as sweep:
        assert sweep.stdout is not None
        child = int(sweep.stdout.readline())
        assert queue.claim("run") is None
        sweep.kill()
        sweep.wait()
        assert queue.claim("run") is None
        os.kill(child, signal.SIGKILL)
        until(lambda: queue.claim("run") is not None, "the claim is free")


def test_all_devices_of_a_run_are_claimed_or_none(queue: Queue) -> None:
    asked = [("host", 2), ("host", 2), ("host", 1), ("other", 3)]
    claims = [queue.claim_places(host, GPUS.devices, needed) for host, needed in asked]
    # Another machine has its own.
    assert [claim and claim.places for claim in claims] == [("2", "3"), None, ("GPU-5",), GPUS.devices]


def test_states_are_complete_or_absent(queue: Queue) -> None:
    state = State("run", "failed", "abc", ["efficientbench", "run", "$(id)"], "folder", kind="crash", reason="a\nb")
    queue.write(state)
    assert queue.read("run") == state
    path = queue.folder / "queue" / "run.json"
    path.write_text(path.read_text(encoding="utf-8")[:40], encoding="utf-8")
    assert (queue.read("run"), queue.read("never")) == (None, None)


def test_runs_get_devices_and_threads_by_jobs_and_ranks() -> None:
    # Two runs of one device each leave none for a third.
    assert [slots(GPUS, jobs) for jobs in (None, 2)] == [("2", "3", "GPU-5"), ("2", "3")]
    assert [slots(CPU, jobs) for jobs in (None, 2)] == [("0",), ("0", "1")]
    asked = [(None, 2), (None, None), (3, None), (2, None)]
    assert [slots_needed(GPUS, jobs, ranks) for jobs, ranks in asked] == [2, 3, 1, 1]
    half = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2))}
    assert slot_environment(GPUS, ("3", "GPU-5"), None, 2, {}) == {"VISIBLE": "3,GPU-5"}
    assert slot_environment(CPU, ("1",), 2, 1, {}) == half
    assert slot_environment(CPU, ("0",), None, 1, {}) == {}
    assert slot_environment(CPU, ("0",), 2, 1, {"OMP_NUM_THREADS": "7"}) == {"OMP_NUM_THREADS": "7"}


@pytest.mark.parametrize(
    ("jobs", "machine", "message"),
    [
        ("0", CPU, "neither auto nor a number"),
        ("many", CPU, "neither auto"),
        ("1" + "0" * 5000, CPU, "from 1 to 1,000"),
        ("4", GPUS, "this machine has 3"),
    ],
)
def test_impossible_numbers_of_jobs_are_refused(jobs: str, machine: Machine, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parallel_runs(jobs, machine)


@pytest.mark.parametrize(
    ("exit_code", "printed", "kind", "reason"),
    [
        (143, "", "stopped", "stopped by a signal"),
        (-signal.SIGTERM, "", "stopped", "stopped by a signal"),
        (2, "noise\nerror: 2 problems:\n  a\n  b\n", "mistake", "2 problems:\n  a\n  b"),
        (1, "Traceback\nValueError: x\n", "crash", "ValueError: x"),
        (-signal.SIGKILL, "", "crash", "ended by SIGKILL (the kernel does so when memory runs out)"),
        (0, "", "crash", "ended without an error and left no complete record"),
    ],
)
def test_the_end_of_a_child_has_a_kind_and_a_reason(
    tmp_path: Path, exit_code: int, printed: str, kind: str, reason: str
) -> None:
    log = tmp_path / "log"
    log.write_text(printed, encoding="utf-8")
    found = failure_of(OutputFolder(tmp_path), exit_code, log, time.time())
    assert (found.kind, found.reason[: len(reason)]) == (kind, reason)


@pytest.mark.parametrize(("since_s", "kind"), [(0.0, "non_finite"), (9e9, "crash")])
def test_the_runs_own_reason_is_used_unless_it_is_of_an_earlier_attempt(
    tmp_path: Path, since_s: float, kind: str
) -> None:
    folder, log = OutputFolder(tmp_path), tmp_path / "log"
    log.write_text("error: x\n")
    folder.failure.write_text(json.dumps({"kind": "non_finite", "reason": "loss", "step": 3, "rank": 1}))
    assert failure_of(folder, 1, log, since_s).kind == kind


def test_a_child_ends_with_all_its_processes(tmp_path: Path) -> None:
    child = Child(["run", "no_such_run"], dict(os.environ), tmp_path / "log", [])
    until(lambda: child.exit_code() is not None, "the command's end")
    assert child.exit_code() == 2
    assert "there is no run called" in (tmp_path / "log").read_text(encoding="utf-8")
    killed = Child(["run", "gqa_0.5B", "--smoke", f"output={tmp_path}"], dict(os.environ), tmp_path / "log", [])
    killed.kill()
    assert killed.exit_code() == -signal.SIGKILL


def test_a_run_queued_in_another_configuration_is_not_claimed(queue: Queue) -> None:
    """Otherwise it would be reported as done in a configuration that never ran."""
    task = TrainingTask("run", ("run", "no_such_run"), OutputFolder(queue.folder.parent / "run"))
    theirs = State(task.id, "queued", "another configuration", [], "folder")
    queue.write(theirs)
    out = io.StringIO()
    Scheduler(queue, [task], Manner(CPU), "host", Display(Console(file=out, width=200), 1)).run([])
    assert queue.read(task.id) == theirs
    assert "run: skipped: another sweep queued it with another configuration" in out.getvalue()


def test_runs_can_save_after_their_terminal_is_closed_twice(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel and the shell send SIGHUP; only Ctrl-C kills a run that saves."""
    folder = queue.folder.parent
    program = (
        "import pathlib, signal, sys, time; folder = pathlib.Path(sys.argv[1])\n"
        "def stop(number, frame): time.sleep(0.6); folder.joinpath('saved').touch(); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, stop); folder.joinpath('began').touch(); time.sleep(300)"
    )
    monkeypatch.setattr(
        "efficientbench.sweep.child.module_command", lambda module, *words: [sys.executable, "-c", program, *words]
    )
    task = TrainingTask("run", (str(folder),), OutputFolder(folder / "run"), resolve("gqa_0.5B", True))
    queue.write(State(task.id, "queued", task.configuration, [], "folder"))
    signals: list[int] = []

    def hang_up() -> None:
        until((folder / "began").exists, "a run")
        signals.extend([signal.SIGHUP, signal.SIGHUP])

    out = io.StringIO()
    with ThreadPoolExecutor(1) as thread:
        closed = thread.submit(hang_up)
        Scheduler(queue, [task], Manner(CPU), "host", Display(Console(file=out, width=200), 1)).run(signals)
        closed.result()
    assert (folder / "saved").exists()
    assert "SIGHUP: no further run starts" in out.getvalue()
    state = queue.read(task.id)
    assert state is not None
    assert state.state == "stopped"


def test_runs_can_save_after_an_error_in_the_sweep(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two runs ends while the queue can no longer be written."""
    folder = queue.folder.parent
    program = (
        "import pathlib, shutil, signal, sys, time; folder = pathlib.Path(sys.argv[1])\n"
        "def stop(number, frame): folder.joinpath('saved').touch(); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, stop); folder.joinpath(sys.argv[2]).touch(); late = time.monotonic() + 300\n"
        "while time.monotonic() < late and not (sys.argv[2] == 'short' and folder.joinpath('long').exists()):\n"
        "    time.sleep(0.01)\n"
        "shutil.rmtree(folder / 'sweep/queue'); folder.joinpath('sweep/queue').touch()"
    )

    def command(module: str, *words: str) -> list[str]:
        return [sys.executable, "-c", program, *words]

    monkeypatch.setattr("efficientbench.sweep.child.module_command", command)
    config = resolve("gqa_0.5B", True)
    tasks = [TrainingTask(name, (str(folder), name), OutputFolder(folder / name), config) for name in ("long", "short")]
    for task in tasks:
        queue.write(State(task.id, "queued", task.configuration, [], "folder"))
    display = Display(Console(file=io.StringIO()), 2)
    with pytest.raises(ConfigError, match="queue"):
        Scheduler(queue, tasks, Manner(CPU, 2), "host", display).run([])
    assert (folder / "saved").exists()


def test_a_reason_that_several_runs_have_is_printed_once() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=300), 3)
    for name, reason in (("gqa", "no text"), ("mla", "no  text\n"), ("nsa", "another")):
        display.ended(State(name, "failed", "hash", [], "folder", kind="mistake", reason=reason))
    assert out.getvalue().splitlines() == [
        "[1/3] gqa: failed (mistake): no text",
        "[2/3] mla: failed (mistake): the same as gqa",
        "[3/3] nsa: failed (mistake): another",
    ]


def test_a_run_waits_for_those_before_it_and_does_not_start_once_one_was_killed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = queue.folder.parent
    program = (
        "import os, pathlib, sys; pathlib.Path(sys.argv[1], sys.argv[2] + '_began').touch()\n"
        "if sys.argv[2] == 'trunk': os.kill(os.getpid(), 9)"
    )
    monkeypatch.setattr(
        "efficientbench.sweep.child.module_command", lambda module, *words: [sys.executable, "-c", program, *words]
    )
    config = resolve("gqa_0.5B", True)

    def task(name: str, *after: str) -> TrainingTask:
        return TrainingTask(name, (str(folder), name), OutputFolder(folder / name), config, after=after)

    # The first of the list waits for the second; the third's is done, by an earlier sweep.
    tasks = [task("branch", "trunk"), task("trunk"), task("other", "done")]
    for each in tasks:
        queue.write(State(each.id, "queued", each.configuration, [], "folder"))
    queue.write(State("done", "done", "its configuration", [], "folder"))
    out = io.StringIO()
    Scheduler(queue, tasks, Manner(CPU, 2), "host", Display(Console(file=out, width=300), 3)).run([])
    states = {name: queue.read(name) for name in ("trunk", "branch", "other")}
    found = {name: (state.state, state.reason or "") for name, state in states.items() if state is not None}
    assert found["trunk"][0] == found["other"][0] == "failed"  # these programs leave no record
    assert found["branch"][0] == "refused"
    assert found["branch"][1].startswith("trunk, which must be done before it, failed: ended by SIGKILL")
    assert [(folder / f"{name}_began").exists() for name in ("trunk", "branch", "other")] == [True, False, True]
    assert json.loads((folder / "branch" / "failure.json").read_text())["kind"] == "mistake"
