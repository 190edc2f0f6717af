"""What a program in the sandbox would change outside: nothing, and nothing of it stays. By root and by a user."""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sandbox_users import USERS, run_as, user_id

from efficientbench.evaluation.code.sandbox import run_program
from efficientbench.evaluation.code.system_calls import instructions, refused_calls

CALLER = """
import ctypes, errno, fcntl, os, sys, tempfile
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    return 0 if libc.syscall(number, *arguments) >= 0 else ctypes.get_errno()

def tried(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return error.errno
    return 0
"""


@pytest.fixture(autouse=True, scope="module")
def calls_are_refused() -> None:
    if not run_program("").held["calls"]:
        pytest.skip("this kernel filters no system calls")


def here(name: str) -> int:
    return refused_calls(platform.machine())[name][0]


@pytest.mark.parametrize("user", USERS)
def test_each_listed_system_call_is_refused(user: str) -> None:
    user_id(user)
    program = f"{CALLER}\ndef f(calls): return {{name: call(number, -1, 0, 0, 0) for name, number in calls.items()}}"
    calls = refused_calls(platform.machine())
    wanted = {name: error for name, (_, error) in calls.items()}
    numbers = {name: number for name, (number, _) in calls.items()}
    assert run_as(user, program, f"from program import f\nfound = f({numbers})\nassert found == {wanted}, found") == (
        *("passed", ""),
    )


@pytest.fixture
def users_file(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file that belongs to the user of a test."""
    user = user_id(request.getfixturevalue("user"))
    # Below tmp_path nobody else may come.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.txt"
        path.write_text("kept")
        for each in (path, path.parent):
            os.chown(each, user, -1)
        yield path


ATTRIBUTES = """
def f(path):
    file = os.open(os.__file__, os.O_RDONLY)
    return [
        tried(os.chmod, path, 0o777), tried(os.fchmod, file, 0o777), tried(os.chown, path, os.getuid(), os.getgid()),
        tried(os.utime, path, (1, 1)), tried(os.utime, path), tried(os.setxattr, path, "user.mine", b"1"),
        tried(os.removexattr, path, "user.kept"), call(452, -100, path.encode(), 0o777, 0),
        call(463, -100, path.encode(), 0, b"user.mine", b"", 0), call(466, -100, path.encode(), 0, b"user.kept"),
    ]
"""


@pytest.mark.parametrize("user", USERS)
def test_permissions_times_and_attributes_of_files_do_not_change(user: str, users_file: Path) -> None:
    def seen() -> tuple[object, ...]:
        facts = users_file.stat()
        return facts.st_mode, facts.st_uid, facts.st_mtime_ns, facts.st_ctime_ns, os.listxattr(users_file)

    before = seen()
    tests = f"from program import f\nfound = f({str(users_file)!r})\nassert set(found) == {{{errno.EPERM}}}, found"
    assert run_as(user, CALLER + ATTRIBUTES, tests) == ("passed", "")
    assert seen() == before


@pytest.mark.proof
@pytest.mark.parametrize("user", USERS)
def test_flags_of_a_readable_file_do_not_change(user: str) -> None:
    user_id(user)
    # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR and F_SETLEASE, on a file of Python's own.
    program = CALLER + (
        "def f():\n"
        "    file = os.open(os.__file__, os.O_RDONLY)\n"
        "    flags = [tried(fcntl.ioctl, file, each, bytes(32)) for each in (0x40086602, 0x401C5820)]\n"
        "    return [*flags, tried(fcntl.fcntl, file, fcntl.F_SETLEASE, fcntl.F_RDLCK), os.isatty(file)]\n"
    )
    tests = f"from program import f\nassert f() == [{errno.EPERM}] * 3 + [False], f()"
    assert run_as(user, program, tests) == ("passed", "")


SLOWER = """
def f(process, calls):
    parameter = os.sched_param(0)
    return [
        tried(os.sched_setaffinity, process, {0}), tried(os.setpriority, os.PRIO_PROCESS, process, 19),
        tried(os.sched_setscheduler, process, os.SCHED_IDLE, parameter), tried(os.sched_setparam, process, parameter),
        call(calls["ioprio_set"], 1, process, 3 << 13), call(calls["sched_setattr"], process, bytes(48), 0),
    ]
"""


@pytest.mark.parametrize("user", USERS)
def test_no_other_process_is_slowed(user: str) -> None:
    other = subprocess.Popen(["sleep", "600"], user=user_id(user) if os.geteuid() == 0 else None)

    def seen() -> tuple[object, ...]:
        idle = subprocess.run(["ionice", "-p", str(other.pid)], capture_output=True, check=False).stdout
        facts = os.sched_getaffinity(other.pid), os.sched_getscheduler(other.pid)
        return *facts, os.getpriority(os.PRIO_PROCESS, other.pid), idle

    try:
        before = seen()
        numbers = {name: here(name) for name in ("ioprio_set", "sched_setattr")}
        tests = (
            f"from program import f\nfound = f({other.pid}, {numbers})\nassert set(found) == {{{errno.EPERM}}}, found"
        )
        assert run_as(user, CALLER + SLOWER, tests) == ("passed", "")
        assert seen() == before
    finally:
        other.kill()
        other.wait()


LEAVE = """
def f(key):
    kept = []
    def segment():
        number = libc.shmget(key, 1500 * 2**20, 0o1600)
        if number < 0:
            raise OSError(ctypes.get_errno(), "shmget")
        libc.shmat.restype = ctypes.c_void_p
        ctypes.memset(libc.shmat(number, None, 0), 1, 1500 * 2**20)
    def in_memory():
        file = os.memfd_create("mine")
        for _ in range(1500):
            os.write(file, bytes(2**20))
    def queue():
        if libc.msgget(key, 0o1600) < 0:
            raise OSError(ctypes.get_errno(), "msgget")
    def semaphore():
        if libc.semget(key, 250, 0o1600) < 0:
            raise OSError(ctypes.get_errno(), "semget")
    def named_queue():
        if libc.mq_open(b"/efficientbench-sandbox", os.O_CREAT | os.O_RDWR, 0o600, None) < 0:
            raise OSError(ctypes.get_errno(), "mq_open")
    def files(folder):
        for each in range(120):
            kept.append(open(f"{folder}/efficientbench-sandbox-{each}", "wb"))
            kept[-1].write(bytes(16 * 2**20))
    folders = (".", "/tmp", "/var/tmp", "/dev/shm")
    found = {action.__name__: tried(action) for action in (segment, in_memory, queue, semaphore, named_queue)}
    return found | {folder: tried(files, folder) for folder in folders}
"""


def left(key: int) -> list[str]:
    """Segments, sets of semaphores and queues of a key, and files that a program may have made."""
    tables = {kind: Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:] for kind in ("shm", "sem", "msg")}
    found = [kind for kind, lines in tables.items() for line in lines if line.split()[0] == str(key)]
    folders = ("/", "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue")
    return found + [str(path) for each in folders for path in Path(each).glob("efficientbench-sandbox*")]


@pytest.mark.parametrize("user", USERS)
def test_no_memory_and_no_file_is_left_behind(user: str) -> None:
    user_id(user)
    # One that no other program of this machine has.
    key = 1 + secrets.randbelow(2**31 - 1)
    wanted = dict.fromkeys(("segment", "in_memory", "queue", "semaphore", "named_queue"), errno.EPERM)
    wanted |= dict.fromkeys((".", "/tmp", "/var/tmp", "/dev/shm"), errno.EACCES)
    tests = f"from program import f\nfound = f({key})\nassert found == {wanted}, found"
    assert run_as(user, CALLER + LEAVE, tests) == ("passed", "")
    assert left(key) == []


@pytest.mark.proof
@pytest.mark.parametrize("user", USERS)
def test_one_limit_holds_for_every_kind_of_memory(user: str) -> None:
    user_id(user)
    program = (
        "import mmap, os\n"
        "def f(way):\n"
        "    kept = []\n"
        "    while len(kept) < 1024:\n"
        "        if way == 'shared':\n"
        "            kept.append(mmap.mmap(-1, 2**20))\n"
        "        elif way == 'private':\n"
        "            kept.append(mmap.mmap(-1, 2**20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))\n"
        "        else:\n"
        "            kept.append(bytearray(2**20))\n"
    )
    for way in ("shared", "private", "bytes"):
        ended, message = run_as(user, program, f"from program import f\nf({way!r})")
        assert (way, ended) == (way, "memory"), message


def verdict(machine: str, known_as: int, number: int, *arguments: int) -> int:
    """What a machine's filter says to a call, by the rules of classic BPF."""
    words = {0: number, 4: known_as, **{16 + 8 * place: value for place, value in enumerate(arguments)}}
    steps, at, loaded = instructions(machine), 0, 0
    while True:
        code, true, false, constant = steps[at]
        if code == 0x06:
            return constant
        if code == 0x20:
            loaded = words[constant]
        else:
            holds = {0x15: loaded == constant, 0x35: loaded >= constant, 0x45: bool(loaded & constant)}[code]
            at += true if holds else false
        at += 1


ALLOWED, REFUSED, KILLED = 0x7FFF0000, 0x00050000, 0x80000000


@pytest.mark.parametrize(
    ("machine", "known_as", "read", "openat", "fcntl", "ioctl", "prlimit64", "socketpair"),
    [("x86_64", 0xC000003E, 0, 257, 72, 16, 302, 53), ("aarch64", 0xC00000B7, 63, 56, 25, 29, 261, 199)],
)
def test_the_filters_of_both_architectures_allow_and_refuse_the_right_calls(
    machine: str, known_as: int, read: int, openat: int, fcntl: int, ioctl: int, prlimit64: int, socketpair: int
) -> None:
    for number, error in refused_calls(machine).values():
        assert verdict(machine, known_as, number) == REFUSED | error
    permission = REFUSED | errno.EPERM
    for number, arguments, wanted in (
        (read, (0, 0, 9), ALLOWED),
        (openat, (0, 0, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY), ALLOWED),
        *((openat, (0, 0, each), REFUSED | errno.EACCES) for each in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC)),
        (fcntl, (0, 1), ALLOWED),
        *((fcntl, (0, each), permission) for each in (8, 15, 1024, 1031)),
        *((ioctl, (0, each), ALLOWED) for each in (0x5401, 0x5421, 0x5451)),
        (ioctl, (0, 0x8901), permission),
        (prlimit64, (0,), ALLOWED),
        (prlimit64, (1,), permission),
        (socketpair, (1, 1 | os.O_CLOEXEC), ALLOWED),
        (socketpair, (1, 2), REFUSED | errno.ENETUNREACH),
    ):
        assert (number, arguments, verdict(machine, known_as, number, *arguments)) == (number, arguments, wanted)
    assert verdict(machine, 0x40000003, read) == verdict(machine, known_as, 0x40000000 + read) == KILLED


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", HEADERS)
def test_system_call_numbers_match_the_kernel_headers(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    numbers = {
        name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)\n", header.read_text())
    }
    ours = {name: number for name, (number, _) in refused_calls(machine).items()}
    known = ours.keys() & numbers.keys()
    # The newest calls are later than the headers of some systems.
    assert ours.keys() - known <= {"fchmodat2", "setxattrat", "removexattrat", "file_setattr"}
    assert {name: ours[name] for name in known} == {name: numbers[name] for name in known}
