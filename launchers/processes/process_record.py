"""Which processes a run consists of, in a file beside its logs, so that what a killed launcher left can be ended.

A process is known again by its number, its start (ticks of the kernel's clock since boot) and its command, in the same
boot and the same container: a number alone may belong to somebody else by now.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PATTERN = "processes_node*.json"


@dataclass(frozen=True)
class RecordedProcess:
    """One process of a run, as the kernel described it when it was recorded."""

    pid: int
    start_ticks: int
    command: tuple[str, ...]

    @classmethod
    def of(cls, pid: int) -> RecordedProcess | None:
        """The process that has this number now, or ``None``."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None
        # The name, in brackets, may hold anything. Of what follows, the first is the state, the 20th the start.
        fields = stat.rpartition(")")[2].split()
        if fields[0] in ("Z", "X"):
            return None
        return cls(pid, int(fields[19]), tuple(command.decode(errors="replace").rstrip("\0").split("\0")))

    def is_running(self) -> bool:
        """Whether this very process still runs."""
        return RecordedProcess.of(self.pid) == self


def this_place() -> str:
    """What process numbers are counted in: this boot of the machine, and the container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


@contextlib.contextmanager
def recorded_processes(log_folder: Path, node: int, pids: Sequence[int]) -> Iterator[None]:
    """Keeps the record of this process and of ``pids``, which it has started, as long as the block runs.

    It stays where one of them does not end, or where this process is killed. A disk that does not take it is no reason
    not to train.
    """
    path = log_folder / f"processes_node{node}.json"
    found = [RecordedProcess.of(pid) for pid in (os.getpid(), *pids)]
    processes = [process for process in found if process is not None]
    content = {"place": this_place(), "processes": [asdict(process) for process in processes]}
    partial = path.with_name(f".{path.name}.partial")
    with contextlib.suppress(OSError):
        partial.write_text(json.dumps(content), encoding="utf-8")
        os.replace(partial, path)
    try:
        yield
    finally:
        if not any(process.is_running() for process in processes if process.pid != os.getpid()):
            with contextlib.suppress(OSError):
                path.unlink()


def read_record(path: Path) -> list[RecordedProcess] | None:
    """The processes of a record; ``None`` where it is of another boot, machine or container.

    Raises ValueError for a file that is no such record.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        place = content["place"]
        processes = [
            RecordedProcess(int(each["pid"]), int(each["start_ticks"]), tuple(map(str, each["command"])))
            for each in content["processes"]
        ]
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{path} is no record of processes ({error})") from None
    return processes if place == this_place() else None
