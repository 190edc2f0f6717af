"""The filter of system calls (seccomp(2)) of a program that a model wrote, on x86-64 and aarch64.

A refused call fails at once with an error that says why; every other call is allowed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import NamedTuple

_SET_SECCOMP, _FILTER = 22, 2
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_OTHER_NUMBERS = 0x40000000
"""The first number of x86-64's second range of call numbers, for programs with 32-bit pointers (seccomp(2))."""
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Linux's number of a machine (audit.h), and the column of its call numbers below."""
_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Opcodes of classic BPF."""
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`; both machines store the low half of an 8-byte argument first."""


_REFUSED = {
    # The error of a process too many.
    errno.EAGAIN: "clone 56 220, fork 57 -, vfork 58 -, clone3 435 435",
    # io_uring opens sockets, too, through a queue instead of system calls.
    errno.ENETUNREACH: "socket 41 198, bind 49 200, connect 42 203, io_uring_setup 425 425",
    errno.EACCES: (
        # Calls that create, rename and remove files. Landlock refuses them, too, where the kernel has it.
        "openat2 437 437, creat 85 -, truncate 76 45, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, "
        "unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, "
        "symlinkat 266 36, mknod 133 -, mknodat 259 33"
    ),
    errno.EPERM: (
        # Signals to other processes, and access to their memory and open files.
        "kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, "
        "pidfd_send_signal 424 424, ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, "
        "pidfd_getfd 438 438, process_madvise 440 440, migrate_pages 256 238, move_pages 279 239, "
        # Scheduling and priority of other processes; writing back their files.
        "sched_setaffinity 203 122, setpriority 141 140, sched_setscheduler 144 119, sched_setparam 142 118, "
        "sched_setattr 314 274, ioprio_set 251 30, sync 162 81, syncfs 306 267, "
        # Rights, owners, times and attributes of files, which Landlock does not govern.
        "chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -, "
        "fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, setxattr 188 5, "
        "lsetxattr 189 6, fsetxattr 190 7, setxattrat 463 463, removexattr 197 14, lremovexattr 198 15, "
        "fremovexattr 199 16, removexattrat 466 466, file_setattr 469 469, "
        # Memory outside the address-space limit, some of which outlives the process.
        "shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semctl 66 191, semop 65 193, "
        "semtimedop 220 192, msgget 68 186, msgctl 71 187, msgsnd 69 189, msgrcv 70 188, mq_open 240 180, "
        "mq_unlink 241 181, memfd_create 319 279, memfd_secret 447 447, add_key 248 217, request_key 249 218, "
        "keyctl 250 219, bpf 321 280, "
        # In its own namespace a process has root's rights.
        "unshare 272 97, setns 308 268, "
        # prctl could keep the process alive when its parent dies; another program could, too, and could be inspected.
        "prctl 157 167, execve 59 221, execveat 322 281"
    ),
}
"""Refused calls by their error, each with its numbers on x86-64 and aarch64; -: the machine lacks the call."""


def refused_calls(machine: str) -> dict[str, tuple[int, int]]:
    """Return the refused calls of a machine: name → (number, error)."""
    _, place = _MACHINES[machine]
    found = {}
    for error, text in _REFUSED.items():
        for name, *numbers in map(str.split, text.split(", ")):
            if numbers[place] != "-":
                found[name] = (int(numbers[place]), error)
    return found


class _Rule(NamedTuple):
    """A call that is refused depending on one of its arguments."""

    numbers: tuple[int | None, int | None]
    """The call's numbers on x86-64 and aarch64; None: the machine lacks the call."""
    error: int
    argument: int
    """The index of the argument."""
    test: int
    """`_EQUAL`: the argument equals one of the values; `_ANY_BIT`: it has a bit of one."""
    values: tuple[int, ...]
    refuses: bool
    """True: the call is refused if the test holds; False: if it does not."""


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_STREAMS = tuple(1 | each for each in (0, os.O_NONBLOCK, os.O_CLOEXEC, os.O_NONBLOCK | os.O_CLOEXEC))
"""Allowed types of a socket pair: streams, since a datagram socket could also write to other sockets."""
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Allowed requests: terminal attributes and size, readable bytes, blocking mode, close-on-exec."""

_BY_ARGUMENT = (
    # open, openat
    _Rule((2, None), errno.EACCES, 1, _ANY_BIT, (_WRITES,), True),
    _Rule((257, 56), errno.EACCES, 2, _ANY_BIT, (_WRITES,), True),
    # prlimit64: allowed only for 0, the process itself, which may read its own limits.
    _Rule((302, 261), errno.EPERM, 0, _EQUAL, (0,), False),
    # fcntl: the process that gets a signal when a file is ready (F_SETOWN, F_SETOWN_EX); leases; larger pipes.
    _Rule((72, 25), errno.EPERM, 1, _EQUAL, (8, 15, 1024, 1031), True),
    # ioctl: only `_IOCTLS` are allowed; others change flags of files, devices and sockets.
    _Rule((16, 29), errno.EPERM, 1, _EQUAL, _IOCTLS, False),
    # socketpair
    _Rule((53, 199), errno.ENETUNREACH, 1, _EQUAL, _STREAMS, False),
)

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """A filter as `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def instructions(machine: str) -> list[tuple[int, int, int, int]]:
    """Return a machine's filter, each step as (opcode, jump if true, jump if false, constant)."""
    known_as, place = _MACHINES[machine]
    steps = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, known_as), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    # A refused call would be allowed under its number of the second range.
    steps += [(_ABOVE, 0, 1, _OTHER_NUMBERS), (_RETURN, 0, 0, _KILL)]
    for number, error in refused_calls(machine).values():
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)]
    for rule in _BY_ARGUMENT:
        steps += _steps_of(rule, place)
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def filter_calls() -> bool:
    """Install the filter in this process; return whether the kernel enforces it."""
    if os.uname().machine not in _MACHINES:
        return False
    packed = b"".join(struct.pack("HBBI", *step) for step in instructions(os.uname().machine))
    program = _Program(len(packed) // 8, packed)
    return bool(_libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0)


def _steps_of(rule: _Rule, place: int) -> list[tuple[int, int, int, int]]:
    number, count = rule.numbers[place], len(rule.values)
    if number is None:
        return []
    verdicts = (_ERRNO | rule.error, _ALLOW) if rule.refuses else (_ALLOW, _ERRNO | rule.error)
    return [
        (_EQUAL, 0, count + 3, number),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * rule.argument),
        # If no value matches, the step after the last comparison is next; if one does, the step after that.
        *((rule.test, count - at, 0, value) for at, value in enumerate(rule.values)),
        (_RETURN, 0, 0, verdicts[1]),
        (_RETURN, 0, 0, verdicts[0]),
    ]
