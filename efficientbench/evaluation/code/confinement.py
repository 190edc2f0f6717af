"""What a program that a model wrote gives up before it runs, all of it Linux's.

Limits of resources, a network namespace (namespaces(7)), a filter of system calls (`system_calls.py`), rules for files
(landlock(7)), capabilities (capabilities(7)). What has been given up cannot be had again.
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
    """Limit memory, processor time, written files, open files and, except for root, processes."""
    for name, value in (
        ("AS", memory_bytes),
        # No file gets longer, so that memory is all that a program fills.
        ("FSIZE", 0),
        ("NOFILE", 64),
        ("NPROC", 0),
        ("CORE", 0),
    ):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    # The first ends the program with a signal that names the reason, the second for certain.
    resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s + 1))


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


def read_only(folders: list[str]) -> bool:
    """Allow to read these files and folders, and nothing else; return whether the kernel knows how."""
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    # All rights of files that this kernel knows: 13 at first, and one more in each of these versions.
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
    """Give up all that can be given up, and return what holds."""
    own_network = leave_network()
    limit(memory_bytes, processor_s)
    capabilities = drop_capabilities()
    # An evaluation that is killed leaves none behind, and others of this user may not look into this process.
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
