"""Programs that a model may write, the harmful ones too: each ends, and the reason is named."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest
from support.repository import ROOT

from efficientbench.evaluation import sandboxed
from efficientbench.evaluation.sandbox import Limits, Outcome, run_program

LIMITS = Limits()
ONE_SECOND = Limits(processor_s=1)


@pytest.fixture(scope="module")
def held() -> dict[str, bool]:
    """What this machine's kernel allows to give up."""
    return dict(run_program("", LIMITS).held)


def attacked(program: str, needed: str, held: dict[str, bool]) -> Outcome:
    if not held[needed]:
        pytest.skip(f"this kernel does not let a program give up: {needed}")
    return run_program(program, LIMITS)


def test_a_program_that_comes_to_its_end_passes() -> None:
    program = "import math, re\n\ndef up(x):\n    return math.ceil(x)\n\nassert up(1.5) == 2\nprint('x' * 100_000)\n"
    outcome = run_program(program, LIMITS)
    assert (outcome.ended, outcome.message, outcome.passed) == ("passed", "", True)
    assert {"memory", "processor", "file_size"} <= {name for name, holds in outcome.held.items() if holds}


@pytest.mark.parametrize(
    ("program", "ended", "message"),
    [
        ("assert 1 == 2, 'no'", "error", "AssertionError: no"),
        ("def f(:", "error", "SyntaxError"),
        ("raise SystemExit(0)", "error", "SystemExit: 0"),
        ("def f(): return f()\nf()", "error", "RecursionError"),
        ("import os; os._exit(0)", "left", "exit status 0 before its end"),
        ("import ctypes; ctypes.string_at(1)", "left", "exit status -11 before its end"),
        ("open('a.txt', 'w').write('b'); assert open('a.txt').read() == 'b'", "passed", ""),
        ("input()", "error", "EOFError"),
    ],
)
def test_how_programs_end(program: str, ended: str, message: str) -> None:
    outcome = run_program(program, LIMITS)
    assert (outcome.ended, outcome.passed) == (ended, ended == "passed")
    assert message in outcome.message


def test_an_endless_loop_is_ended() -> None:
    outcome = run_program("while True:\n    pass\n", ONE_SECOND)
    assert (outcome.ended, outcome.message) == ("time", "it used more than 1 s of processor time")


@pytest.mark.proof
def test_one_that_only_waits_is_ended() -> None:
    begun = time.monotonic()
    outcome = run_program("import time\nwhile True:\n    time.sleep(60)\n", Limits(wall_s=1.0))
    assert (outcome.ended, outcome.message) == ("time", "it ran for more than 1 s")
    assert time.monotonic() - begun < 60


@pytest.mark.proof
def test_a_loop_that_catches_every_error_is_ended() -> None:
    program = "while True:\n    try:\n        while True: pass\n    except BaseException: pass\n"
    assert run_program(program, ONE_SECOND).ended == "time"


def test_two_gigabytes_are_refused() -> None:
    outcome = run_program("kept = bytearray(2 * 2**30)", LIMITS)
    assert (outcome.ended, outcome.message) == ("memory", "MemoryError: ")
    assert run_program("kept = []\nwhile True:\n    kept.append(bytearray(2**20))", LIMITS).ended == "memory"


def test_a_fork_bomb_is_refused(held: dict[str, bool]) -> None:
    bomb = "import os\nwhile True:\n    os.fork()\n"
    assert attacked(bomb, "processes", held).ended == "processes"
    for program in (
        "import subprocess; subprocess.run(['true'])",
        "import threading; threading.Thread(target=print).start()",
    ):
        assert run_program(program, LIMITS).ended == "processes"


@pytest.mark.parametrize("way", ["open({!r}, 'w')", "import os; os.unlink({!r})", "import os; os.mkdir({!r} + '.d')"])
def test_nothing_is_written_outside(way: str, held: dict[str, bool], tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("kept")
    outcome = attacked(way.format(str(mine)), "files", held)
    assert outcome.ended == "files"
    assert "Permission denied" in outcome.message
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]
    assert mine.read_text() == "kept"


def test_a_large_file_is_refused() -> None:
    program = "with open('big', 'wb') as file:\n    while True:\n        file.write(bytes(2**20))\n"
    assert run_program(program, LIMITS).ended == "file_size"


def test_the_folder_is_gone_afterwards() -> None:
    outcome = run_program("import os; raise ValueError(os.getcwd())", LIMITS)
    assert not Path(outcome.message.removeprefix("ValueError: ")).exists()


@pytest.mark.parametrize(
    "program",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.getaddrinfo('localhost', 80, proto=socket.IPPROTO_TCP); socket.socket()",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/')",
    ],
)
def test_there_is_no_network(program: str, held: dict[str, bool]) -> None:
    assert attacked(program, "network", held).ended == "network"


def test_the_environment_is_empty(held: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "do not tell")
    outcome = run_program("import os; os.environ['SECRET']", LIMITS)
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
        outcome = attacked(program, "signals", held)
        assert (way, outcome.ended) == (way, "signals")
    # A program may ask what itself is allowed, and what its files are.
    assert run_program("import resource\nresource.getrlimit(resource.RLIMIT_CPU)", LIMITS).passed
    assert run_program("import fcntl\nfcntl.fcntl(1, fcntl.F_GETFL)", LIMITS).passed


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
def test_signals_are_refused_whatever_the_call(call: str, held: dict[str, bool]) -> None:
    assert attacked(called(number_of(call)), "signals", held).ended == "signals"


@pytest.mark.parametrize("call", ["ptrace", "process_vm_readv", "process_vm_writev"])
def test_the_memory_of_others_is_out_of_reach(call: str, held: dict[str, bool]) -> None:
    assert attacked(called(number_of(call)), "signals", held).ended == "signals"


def test_no_queue_of_calls_makes_a_socket(held: dict[str, bool]) -> None:
    assert attacked(called(number_of("io_uring_setup")), "signals", held).ended == "network"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="others count their system calls once")
@pytest.mark.parametrize("call", ["fork", "socket"])
def test_a_call_by_its_second_number_ends_the_program(call: str, held: dict[str, bool]) -> None:
    outcome = attacked(called(0x40000000 + number_of(call)), "signals", held)
    assert (outcome.ended, outcome.message) == ("left", f"exit status -{signal.SIGSYS.value} before its end")


def number_of(call: str) -> int:
    return sandboxed._CALLS[platform.machine()][1][call]


def test_a_network_of_its_own_needs_no_map_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, mode: str) -> IO[str]:
        raise PermissionError(errno.EPERM, "refused by AppArmor", path)

    monkeypatch.setattr(sandboxed, "_libc", SimpleNamespace(unshare=lambda flags: 0))
    monkeypatch.setattr(sandboxed, "open", refuse, raising=False)
    assert sandboxed.leave_network() is True


WRITE = """
import os
for each in range(64):
    try:
        os.write(each, {!r})
    except OSError:
        pass
"""


def test_a_forged_report_is_no_pass() -> None:
    forged = WRITE.format(b'{"ended": "passed", "message": ""}\n')
    assert run_program(forged + "assert False", LIMITS).ended == "error"
    assert run_program(forged + "os._exit(0)", LIMITS).ended == "left"


def test_bytes_in_every_open_file_end_nothing() -> None:
    assert run_program(WRITE.format(b"\xff\xfe"), LIMITS).ended == "passed"


def test_a_folder_of_any_depth_is_removed() -> None:
    program = (
        "import os\n"
        "here = os.getcwd()\n"
        "for _ in range(1500):\n"
        "    os.mkdir('d')\n"
        "    os.chdir('d')\n"
        "os.mkdir('closed')\n"
        "os.chmod('.', 0)\n"
        "raise ValueError(here)\n"
    )
    outcome = run_program(program, LIMITS)
    assert outcome.message.startswith("ValueError: ")
    assert not Path(outcome.message.removeprefix("ValueError: ")).exists()


AS_NOBODY = """
import json
from efficientbench.evaluation.sandbox import run_program
programs = ["", "import os; os.fork()", "import socket; socket.socket()", "open('/tmp/x', 'w')", "bytearray(2**31)"]
print(json.dumps([run_program(program).ended for program in programs]))
"""


@pytest.mark.proof
def test_for_another_user_than_root_the_same_holds(held: dict[str, bool]) -> None:
    if os.geteuid() != 0 or not all(held.values()):
        pytest.skip("this process is that of another user already, or the kernel lacks something")
    # One that everybody may start.
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("there is no python3 in /usr/bin")
    done = subprocess.run(
        [python, "-B", "-c", AS_NOBODY],
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    if b"No module named 'efficientbench'" in done.stderr:
        pytest.skip("others may not read this checkout")
    assert json.loads(done.stdout or b"null") == ["passed", "processes", "network", "files", "memory"], done.stderr
