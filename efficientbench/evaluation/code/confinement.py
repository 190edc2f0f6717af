"""Give up a process's rights on Linux before it runs a program that a model wrote.

Resource limits, a network namespace (namespaces(7)), a filter of system calls (`system_calls.py`), rules for files
(landlock(7)), capabilities (capabilities(7)). The process cannot regain these rights.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys

from efficientbench.evaluation.code.system_calls import filter_calls

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_PARENT_DEATH, _DUMPABLE, _NO_NEW_PRIVILEGES = 1, 4, 38
_CAPABILITIES = 0x20080522
_CREATE_RULESET, _ADD_RULE, _RESTRICT = 444, 445, 446
_EXECUTE, _READ_FILE, _READ_FOLDER = 1, 4, 8

_libc = ctypes.CDLL(None, use_errno=True)


def limit(memory_bytes: int, processor_s: int) -> None:
    """Limit memory, processor time, written and open files, and, except for root, processes."""
    for name, value in (
        ("AS", memory_bytes),
        # No file can grow, so that a program can fill nothing but memory.
        ("FSIZE", 0),
        ("NOFILE", 64),
        ("NPROC", 0),
        ("CORE", 0),
    ):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    # The soft limit ends the program with a signal that names the reason, the hard limit kills it.
    resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s + 1))


def leave_network() -> bool:
    """Move into a new network namespace, which has no connection; return whether the kernel allowed it."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_NEW_USER | _NEW_NET) != 0:
        return False
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, content in maps.items():
        # If AppArmor refuses the maps (Ubuntu 24.04), the user has no id in the namespace, but still reads its files.
        with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as file:
            file.write(content)
    return True


def drop_capabilities() -> bool:
    """Drop all capabilities of root or of a namespace's owner; return whether the kernel did."""
    header = struct.pack("Ii", _CAPABILITIES, 0)
    return bool(_libc.capset(header, bytes(24)) == 0)


def read_only(folders: list[str]) -> bool:
    """Allow reading and executing below these paths, and no other file access; return whether the kernel agrees."""
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    # All file rights that this kernel knows: 13 in version 1, and one more in each of these versions.
    rights = (1 << 13 + sum(version >= each for each in (2, 3, 5))) - 1
    rules = _libc.syscall(_CREATE_RULESET, struct.pack("Q", rights), ctypes.c_size_t(8), 0)
    for path in filter(os.path.exists, folders):
        opened = os.open(path, os.O_PATH)
        allowed = _READ_FILE | _EXECUTE | (_READ_FOLDER if os.path.isdir(path) else 0)
        if _libc.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", allowed, opened), 0) != 0:
            return False
        os.close(opened)
    return bool(_libc.syscall(_RESTRICT, rules, 0) == 0)


def give_up(memory_bytes: int, processor_s: int) -> dict[str, bool]:
    """Give up all rights that the kernel lets a process give up; return which limits and refusals are in force."""
    own_network = leave_network()
    limit(memory_bytes, processor_s)
    capabilities = drop_capabilities()
    # The kernel kills this process when its parent dies, and lets no other process of this user inspect it.
    _libc.prctl(_PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(_DUMPABLE, 0, 0, 0, 0)
    _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    files = read_only([sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime"])
    calls = filter_calls()
    return {
        "memory": True,
        "processor": True,
        "disk": True,
        "processes": calls or os.getuid() != 0,
        "network": calls or own_network,
        "calls": calls,
        "files": files,
        "capabilities": capabilities,
    }
