"""Programs that a model may write, the harmful ones too: each ends, and the reason is named."""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest
from support.command_line import children, is_alive, until
from support.repository import ROOT

from efficientbench.basics.errors import EvaluationError
from efficientbench.evaluation.code import confinement, sandbox
from efficientbench.evaluation.code.sandbox import Limits, Outcome, run_program
from efficientbench.evaluation.code.system_calls import refused_calls

ONE_SECOND = Limits(processor_s=1)


@pytest.fixture(scope="module")
def held() -> dict[str, bool]:
    """What this machine's kernel allows to give up."""
    return dict(run_program("").held)


def attacked(program: str, needed: str, held: dict[str, bool]) -> Outcome:
    if not held[needed]:
        pytest.skip(f"this kernel does not let a program give up: {needed}")
    return run_program(program)


def test_a_program_that_ends_normally_passes() -> None:
    program = "import math, re\n\ndef up(x):\n    return math.ceil(x)\n\nassert up(1.5) == 2\nprint('x' * 100_000)\n"
    outcome = run_program(program)
    assert (outcome.ended, outcome.message, outcome.passed) == ("passed", "", True)
    assert {"memory", "processor", "disk"} <= {name for name, holds in outcome.held.items() if holds}


@pytest.mark.parametrize(
    ("program", "ended", "message"),
    [
        ("assert 1 == 2, 'no'", "error", "AssertionError: no"),
        ("def f(:", "error", "SyntaxError"),
        ("raise SystemExit(0)", "error", "SystemExit: 0"),
        ("def f(): return f()\nf()", "error", "RecursionError"),
        ("import os; os._exit(0)", "left", "exit status 0 before its end"),
        ("import ctypes; ctypes.string_at(1)", "left", "exit status -11 before its end"),
        ("open('a.txt', 'w')", "files", "PermissionError"),
        ("input()", "error", "EOFError"),
    ],
)
def test_each_end_of_a_program_is_named(program: str, ended: str, message: str) -> None:
    outcome = run_program(program)
    assert (outcome.ended, outcome.passed) == (ended, ended == "passed")
    assert message in outcome.message


def test_an_endless_loop_is_ended() -> None:
    outcome = run_program("while True:\n    pass\n", limits=ONE_SECOND)
    assert (outcome.ended, outcome.message) == ("time", "it used more than 1 s of processor time")


@pytest.mark.proof
def test_a_program_that_only_sleeps_is_ended() -> None:
    begun = time.monotonic()
    outcome = run_program("import time\nwhile True:\n    time.sleep(60)\n", limits=Limits(wall_s=1.0))
    assert (outcome.ended, outcome.message) == ("time", "it ran for more than 1 s")
    assert time.monotonic() - begun < 60


@pytest.mark.proof
def test_a_slow_start_does_not_count_against_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    # The interpreters start as if from a slow file system.
    monkeypatch.setattr(sandbox, "_INSIDE", f"import time; time.sleep(9); {sandbox._INSIDE}")
    assert run_program("", limits=Limits(wall_s=8.0)).passed


def test_a_sandbox_that_does_not_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_INSIDE", "raise SystemExit('no interpreter')")
    with pytest.raises(EvaluationError, match="cannot be run here: no interpreter"):
        run_program("")
    monkeypatch.setattr(sandbox, "_INSIDE", "import time; time.sleep(600)")
    monkeypatch.setattr(sandbox, "START_S", 0.1)
    with pytest.raises(EvaluationError, match="did not start within 0.1 s"):
        run_program("")


@pytest.mark.proof
def test_a_loop_that_catches_every_error_is_ended() -> None:
    program = "while True:\n    try:\n        while True: pass\n    except BaseException: pass\n"
    assert run_program(program, limits=ONE_SECOND).ended == "time"


def test_two_gigabytes_are_refused() -> None:
    outcome = run_program("kept = bytearray(2 * 2**30)")
    assert (outcome.ended, outcome.message) == ("memory", "MemoryError: ")
    assert run_program("kept = []\nwhile True:\n    kept.append(bytearray(2**20))").ended == "memory"


def test_a_fork_bomb_is_refused(held: dict[str, bool]) -> None:
    bomb = "import os\nwhile True:\n    os.fork()\n"
    assert attacked(bomb, "processes", held).ended == "processes"
    for program in (
        "import subprocess; subprocess.run(['true'])",
        "import threading; threading.Thread(target=print).start()",
    ):
        assert run_program(program).ended == "processes"


@pytest.mark.parametrize("way", ["open({!r}, 'w')", "import os; os.unlink({!r})", "import os; os.mkdir({!r} + '.d')"])
def test_nothing_is_written_outside(way: str, held: dict[str, bool], tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("kept")
    outcome = attacked(way.format(str(mine)), "files", held)
    assert outcome.ended == "files"
    assert "Permission denied" in outcome.message
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]
    assert mine.read_text() == "kept"


@pytest.mark.parametrize(
    "program",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.getaddrinfo('localhost', 80, proto=socket.IPPROTO_TCP); socket.socket()",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/')",
    ],
)
def test_the_network_is_refused(program: str, held: dict[str, bool]) -> None:
    assert attacked(program, "network", held).ended == "network"


def test_the_environment_is_empty(held: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "do not tell")
    outcome = run_program("import os; os.environ['SECRET']")
    assert (outcome.ended, outcome.message) == ("error", "KeyError: 'SECRET'")
    for process in ("self", os.getpid()):
        outcome = attacked(f"raise ValueError(open('/proc/{process}/environ').read())", "files", held)
        assert outcome.ended == "files"


def test_no_other_process_can_be_killed(held: dict[str, bool]) -> None:
    for way in (
        "os.kill({}, 0)",
        "signal.pidfd_send_signal(os.pidfd_open({}), 0)",
        "resource.prlimit({}, resource.RLIMIT_CPU)",
        "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, {})",
        "fcntl.fcntl(os.pipe()[0], 15, struct.pack('ii', 1, {}))",
        "fcntl.ioctl(socket.socketpair()[0], 0x8901, struct.pack('i', {}))",
        "fcntl.ioctl(socket.socketpair()[0], 0x8902, struct.pack('i', {}))",
    ):
        program = "import fcntl, os, resource, signal, socket, struct\n" + way.format(os.getpid())
        outcome = attacked(program, "calls", held)
        assert (way, outcome.ended) == (way, "refused")
    # A program may ask what itself is allowed, and what its files are.
    assert run_program("import resource\nresource.getrlimit(resource.RLIMIT_CPU)").passed
    assert run_program("import fcntl\nfcntl.fcntl(1, fcntl.F_GETFL)").passed


def called(number: int) -> str:
    """A program that makes a system call with the id of this process."""
    # With a null signal and a null address: what is not refused fails for another reason, or does nothing.
    return (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"if libc.syscall({number}, {os.getpid()}, 0, 0, 0):\n"
        "    raise OSError(ctypes.get_errno(), 'refused')\n"
    )


@pytest.mark.parametrize("call", ["tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"])
def test_signals_are_refused_by_every_system_call(call: str, held: dict[str, bool]) -> None:
    assert attacked(called(number_of(call)), "calls", held).ended == "refused"


@pytest.mark.parametrize("call", ["ptrace", "process_vm_readv", "process_vm_writev"])
def test_the_memory_of_other_processes_cannot_be_read(call: str, held: dict[str, bool]) -> None:
    assert attacked(called(number_of(call)), "calls", held).ended == "refused"


def test_io_uring_makes_no_socket(held: dict[str, bool]) -> None:
    assert attacked(called(number_of("io_uring_setup")), "calls", held).ended == "network"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="others count their system calls once")
@pytest.mark.parametrize("call", ["fork", "socket"])
def test_a_system_call_by_its_x32_number_ends_the_program(call: str, held: dict[str, bool]) -> None:
    outcome = attacked(called(0x40000000 + number_of(call)), "calls", held)
    assert (outcome.ended, outcome.message) == ("left", f"exit status -{signal.SIGSYS.value} before its end")


def number_of(call: str) -> int:
    return refused_calls(platform.machine())[call][0]


def test_a_network_namespace_needs_no_user_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, mode: str) -> IO[str]:
        raise PermissionError(errno.EPERM, "refused by AppArmor", path)

    monkeypatch.setattr(confinement, "_libc", SimpleNamespace(unshare=lambda flags: 0))
    monkeypatch.setattr(confinement, "open", refuse, raising=False)
    assert confinement.leave_network() is True


def test_the_output_of_a_program_is_discarded() -> None:
    assert run_program("import sys\nprint('x' * 10**6)\nsys.stderr.write('y' * 10**6)").passed


def test_control_characters_are_removed_from_a_message() -> None:
    outcome = run_program("raise ValueError('\\x1b]0;mine\\x07\\x9b2J\\r\\n\\u202e')")
    assert outcome.message == "ValueError: \ufffd]0;mine\ufffd\ufffd2J\ufffd\ufffd\ufffd"
    outcome = run_program("def f():\n    raise ValueError('\\x1b[2J')", "from program import f\nf()")
    assert outcome.message == "ValueError: \ufffd[2J"


@pytest.mark.proof
def test_killing_an_evaluation_kills_its_programs(held: dict[str, bool]) -> None:
    if not held["calls"]:
        pytest.skip("a process does not show when it has given up the rest")
    # PR_SET_PDEATHSIG: no signal when the parent dies. An ignored signal shows that the program has come so far.
    program = (
        "import ctypes, signal, time\n"
        "ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "time.sleep(600)\n"
    )
    run = f"from efficientbench.evaluation.code.sandbox import run_program\nrun_program({program!r})"

    def facts(process: int) -> dict[str, str]:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)

    def begun() -> bool:
        found = [facts(each.pid) for each in children(evaluation.pid)]
        ignored = [int(each["SigIgn"], 16) & 1 << signal.SIGUSR1 - 1 for each in found]
        return len(found) == 2 and all(each["Seccomp"] == "2" for each in found) and any(ignored)

    with subprocess.Popen([sys.executable, "-c", run], env={**os.environ, "PYTHONPATH": str(ROOT)}) as evaluation:
        until(begun, "the program waits")
        started = [each.pid for each in children(evaluation.pid)]
        evaluation.kill()
    until(lambda: not any(map(is_alive, started)), "the programs have ended", limit_s=60)
