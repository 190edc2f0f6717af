"""This machine as a sweep sees it: its devices, looked at from a process of their own, and shares of them for runs.

The sweep itself never opens an accelerator: it would take memory on it while runs are measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from efficientbench.config.errors import ConfigError
from efficientbench.devices.base import DeviceError
from efficientbench.devices.registry import find_device
from efficientbench.launchers.processes.worker_process import module_command

MOST_RUNS = 1000
"""At once."""


@dataclass(frozen=True)
class Machine:
    """Devices of one type, each by what names it in the variable that limits what a process sees of them."""

    type: str
    name: str
    devices: tuple[str, ...]
    memory_bytes: int | None
    """Of one device; None where all share the host's."""
    runtime_bytes: int
    """What a rank takes beside its tensors."""
    visibility: str | None
    """That variable; None where a run's part of the device cannot be limited (a CPU)."""
    compiles: bool = False
    """Whether torch.compile makes faster kernels for the devices than torch's own."""

    @property
    def shared(self) -> bool:
        """Whether runs share one device, which is the host."""
        return self.memory_bytes is None


@dataclass(frozen=True)
class Share:
    """What one run gets: a machine that has no more than these devices."""

    machine: Machine
    devices: int

    @property
    def runtime_bytes(self) -> int:
        return self.machine.runtime_bytes

    def count(self) -> int:
        """Devices that the run may use."""
        return self.devices

    def fuses(self) -> bool:
        """As of `Device`."""
        return self.machine.compiles

    def memory_capacity_bytes(self) -> int | None:
        """Of one device; None where it is the host's."""
        return self.machine.memory_bytes


def look(device: str) -> Machine:
    """The machine's devices of this type, or of the one that `auto` finds.

    Raises ConfigError where there are none, with the reason.
    """
    done = subprocess.run(
        module_command("efficientbench.sweep.machine", device), capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ConfigError(lines[-1] if lines else f"device={device} cannot be looked at")
    found = json.loads(done.stdout.splitlines()[-1])
    return Machine(**{**found, "devices": tuple(found["devices"])})


def parallel_runs(jobs: str, machine: Machine) -> int | None:
    """How many runs to have at once: the number given, or None for `auto`.

    Raises ConfigError for what is neither, or more than there are devices for.
    """
    if jobs == "auto":
        return None
    if not jobs.isascii() or not jobs.isdigit() or len(jobs) > len(str(MOST_RUNS)) or not 1 <= int(jobs) <= MOST_RUNS:
        raise ConfigError(f"--jobs: {jobs[:40]!r} is neither auto nor a number from 1 to {MOST_RUNS:,}")
    if not machine.shared and int(jobs) > len(machine.devices):
        raise ConfigError(f"--jobs: {jobs} runs cannot have devices of their own: there are {len(machine.devices)}")
    return int(jobs)


def slots(machine: Machine, jobs: int | None) -> tuple[str, ...]:
    """What runs occupy, one or several of: the devices; on a shared one as many places as runs may be at once."""
    if machine.shared:
        return tuple(str(place) for place in range(jobs or 1))
    # Without those that are left over when all runs have equal parts: they would serve as one run more.
    return machine.devices if jobs is None else machine.devices[: len(machine.devices) // jobs * jobs]


def slots_needed(machine: Machine, jobs: int | None, ranks: int | None) -> int:
    """Slots that one run takes: an equal part of the devices, or with `auto` (None) one for each of its ranks.

    `ranks` is None for a run that takes all devices it can see.
    """
    if machine.shared:
        return 1
    if jobs is not None:
        return len(machine.devices) // jobs
    return len(machine.devices) if ranks is None else min(ranks, len(machine.devices))


def run_environment(
    machine: Machine, chosen: Sequence[str], jobs: int | None, ranks: int, base: Mapping[str, str]
) -> dict[str, str]:
    """`base` with what limits a run to its devices, or several on a CPU to their part of its cores."""
    environment = dict(base)
    if machine.visibility is not None:
        environment[machine.visibility] = ",".join(chosen)
    elif jobs is not None and jobs > 1:
        threads = len(os.sched_getaffinity(0)) // (jobs * ranks)
        environment.setdefault("OMP_NUM_THREADS", str(max(1, threads)))
    return environment


def _describe(device_name: str) -> Machine:
    device = find_device(device_name)
    return Machine(
        type=device.type,
        name=device.names()[0],
        devices=tuple(device.visible(os.environ)),
        memory_bytes=device.memory_capacity_bytes(),
        runtime_bytes=device.runtime_bytes,
        visibility=device.visibility,
        compiles=device.fuses(),
    )


def main() -> None:
    """Prints the machine as JSON; what is wrong goes to stderr, with exit code 2."""
    try:
        print(json.dumps(asdict(_describe(sys.argv[1]))))
    except DeviceError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
