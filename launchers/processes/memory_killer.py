"""How often the kernel has killed a process of this one's cgroup because memory ran out. Linux, cgroup v1 and v2."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/")


def memory_kills(root: Path = _ROOT) -> int | None:
    """The `oom_kill` counter of this process's own cgroup, which its children share; None where there is none."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        # Inside a container the path may name a folder that only the host sees: then the mount itself is ours.
        for folder in (mount / path.lstrip("/"), mount):
            for name in ("memory.oom_control", "memory.events"):
                for entry in _lines(folder / name):
                    key, _, value = entry.partition(" ")
                    if key == "oom_kill" and value.isdigit():
                        return int(value)
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
