"""The inner side of the sandbox: gives up what the program is not to have, and runs it in this interpreter.

`sandbox.py` starts it as `python -I`, in a session, an empty environment and a folder of its own. It imports the
standard library alone. What it does is Linux's: limits of resources, a network namespace (namespaces(7)), a filter of
system calls (seccomp(2)), rules for files (landlock(7)), no capabilities (capabilities(7)).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import struct
import sys
from typing import Any

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_CAPABILITIES = 0x20080522
_CREATE_RULESET, _ADD_RULE, _RESTRICT = 444, 445, 446
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EXECUTE, _READ_FILE, _READ_FOLDER = 1, 4, 8
_FIRST, _SECOND = 16, 24
"""Offsets of the low halves of a call's first arguments in `struct seccomp_data`, on both machines."""
_SET_OWNERS = {"fcntl": (8, 15), "ioctl": (0x8901, 0x8902)}
"""Of these calls the commands that say whom the kernel signals, by any signal, when a file is ready."""
_OTHER_NUMBERS = 0x40000000
"""From here on x86-64 counts its calls once more, for programs of 32-bit addresses (seccomp(2))."""

_CALLS = {
    "x86_64": (
        0xC000003E,
        {"clone": 56, "fork": 57, "vfork": 58, "clone3": 435, "socket": 41, "prlimit64": 302, "kill": 62}
        | {"tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "pidfd_send_signal": 424}
        | {"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "io_uring_setup": 425, "fcntl": 72}
        | {"ioctl": 16},
    ),
    "aarch64": (
        0xC00000B7,
        {"clone": 220, "clone3": 435, "socket": 198, "prlimit64": 261, "kill": 129}
        | {"tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "pidfd_send_signal": 424}
        | {"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "io_uring_setup": 425, "fcntl": 25}
        | {"ioctl": 29},
    ),
}
"""By machine: the number by which Linux knows it (audit.h), and those of system calls."""
_REFUSALS = {
    **dict.fromkeys(("clone", "fork", "vfork", "clone3"), errno.EAGAIN),
    # io_uring makes sockets too, and its queue is no system call.
    **dict.fromkeys(("socket", "io_uring_setup"), errno.ENETUNREACH),
}
"""How a refused call fails: a new process as if there were too many; signals, limits and memory of others, as not
allowed."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """A filter, as `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def limit(limits: dict[str, int]) -> None:
    """Limit memory, processor time, written files, open files and, except for root, processes."""
    for name, value in (
        ("AS", limits["memory_bytes"]),
        ("FSIZE", limits["file_bytes"]),
        ("NOFILE", 64),
        ("NPROC", 0),
        ("CORE", 0),
    ):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    # The first ends the program with a signal that names the reason, the second for certain.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["processor_s"], limits["processor_s"] + 1))


def leave_network() -> bool:
    """Move into a network namespace of its own, which has no way out; return whether the kernel let it."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_NEW_USER | _NEW_NET) != 0:
        return False
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, content in maps.items():
        # Where AppArmor refuses them (Ubuntu 24.04), this user has no name in there, and keeps its files all the same.
        with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as file:
            file.write(content)
    return True


def drop_capabilities() -> bool:
    """Give up what root, or the owner of a namespace, may do beyond others."""
    header = struct.pack("Ii", _CAPABILITIES, 0)
    return bool(_libc.capset(header, bytes(24)) == 0)


def confine_files(readable: list[str], folder: str) -> bool:
    """Allow to read some folders and files, and to write in one folder alone; return whether the kernel knows how."""
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    # All rights of files that this kernel knows: 13 at first, and one more in each of these versions.
    rights = (1 << 13 + sum(version >= each for each in (2, 3, 5))) - 1
    rules = _libc.syscall(_CREATE_RULESET, struct.pack("Q", rights), ctypes.c_size_t(8), 0)
    for path, allowed in (*((each, _READ_FILE | _READ_FOLDER | _EXECUTE) for each in readable), (folder, rights)):
        if not os.path.exists(path):
            continue
        opened = os.open(path, os.O_PATH)
        allowed = allowed if os.path.isdir(path) else allowed & ~_READ_FOLDER
        if _libc.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", allowed, opened), 0) != 0:
            return False
        os.close(opened)
    return bool(_libc.syscall(_RESTRICT, rules, 0) == 0)


def filter_calls() -> bool:
    """Refuse processes, threads, sockets, and signals, limits and memory of others; return whether the kernel does."""
    if platform.machine() not in _CALLS:
        return False
    machine, numbers = _CALLS[platform.machine()]
    # Classic BPF: (code, jump if true, jump if false, constant). It loads the machine, then the call's number.
    steps = [(0x20, 0, 0, 4), (0x15, 1, 0, machine), (0x06, 0, 0, _KILL), (0x20, 0, 0, 0)]
    # By its second number a refused call would be allowed.
    steps += [(0x35, 0, 1, _OTHER_NUMBERS), (0x06, 0, 0, _KILL)]
    for name, number in numbers.items():
        refused = (0x06, 0, 0, _ERRNO | _REFUSALS.get(name, errno.EPERM))
        if name == "prlimit64":
            # Its first argument names the process; 0 is this one, which may read its own limits.
            steps += [(0x15, 0, 4, number), (0x20, 0, 0, _FIRST), (0x15, 0, 1, 0), (0x06, 0, 0, _ALLOW), refused]
        elif name in _SET_OWNERS:
            # The second argument is the command.
            one, other = _SET_OWNERS[name]
            steps += [(0x15, 0, 5, number), (0x20, 0, 0, _SECOND)]
            steps += [(0x15, 2, 0, one), (0x15, 1, 0, other), (0x06, 0, 0, _ALLOW), refused]
        else:
            steps += [(0x15, 0, 1, number), refused]
    packed = b"".join(struct.pack("HBBI", *step) for step in [*steps, (0x06, 0, 0, _ALLOW)])
    program = _Program(len(packed) // 8, packed)
    return bool(_libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0)


def restrict(job: dict[str, Any]) -> dict[str, bool]:
    """Give up all that can be given up, and return what holds."""
    own_network = leave_network()
    limit(job["limits"])
    capabilities = drop_capabilities()
    _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    readable = [sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime"]
    files = confine_files(readable, os.getcwd())
    calls = filter_calls()
    return {
        "memory": True,
        "processor": True,
        "file_size": True,
        "processes": calls or os.getuid() != 0,
        "network": calls or own_network,
        "signals": calls,
        "files": files,
        "capabilities": capabilities,
    }


def reason(error: BaseException) -> str:
    """Return what ended a program: a limit or a refusal by its name, or "error"."""
    # What urllib raises has the error of the socket inside.
    error = getattr(error, "reason", error)
    if isinstance(error, MemoryError):
        return "memory"
    if type(error).__name__ in ("gaierror", "herror"):
        return "network"
    # Python says of a thread only that it cannot begin.
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "processes"
    if not isinstance(error, OSError):
        return "error"
    names = {errno.EAGAIN: "processes", errno.ENOMEM: "memory", errno.EFBIG: "file_size", errno.EACCES: "files"}
    return {**names, errno.ENETUNREACH: "network", errno.EPERM: "signals"}.get(error.errno or 0, "error")


def execute(program: str) -> dict[str, str]:
    """Run a program, and return how it ended."""
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except BaseException as error:
        return {"ended": reason(error), "message": f"{type(error).__name__}: {error}"[:200]}
    return {"ended": "passed", "message": ""}


def main() -> None:
    """Read a job, write what holds to the output, and how the program ended to the file that the job names.

    Both are JSON; how it ended stands in a line of its own behind the job's token.
    """
    job = json.load(sys.stdin)
    nowhere = os.open(os.devnull, os.O_RDWR)
    print(json.dumps(restrict(job)), flush=True)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    own = os.getpid()
    ended = execute(job["program"])
    # Where processes are allowed, a copy of this one comes here too.
    if os.getpid() == own:
        os.write(job["report"], f"\n{job['token']}{json.dumps(ended)}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
