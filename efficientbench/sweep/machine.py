"""Find this machine's devices, in a separate process, and divide them among the runs of a sweep.

The sweep's process never opens an accelerator: that would take memory on it while runs are measured.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from efficientbench.basics.errors import ConfigError
from efficientbench.devices.base import DeviceError
from efficientbench.devices.registry import device_of_backend, find_device
from efficientbench.launchers.processes.worker_process import module_command
from efficientbench.metrics.sensors.hardware import known_device

MOST_RUNS = 1000
"""Most runs at once."""


@dataclass(frozen=True)
class Machine:
    """A machine's devices of one type."""

    type: str
    name: str
    devices: tuple[str, ...]
    """Each device's name in the variable `visibility`."""
    memory_bytes: int | None
    """Memory of one device; None where the devices are the host, which all runs share."""
    runtime_bytes: int
    """Memory that a rank takes beside its tensors."""
    visibility: str | None
    """The environment variable that limits which devices a process sees; None where there is none (a CPU)."""
    compiles: bool = False
    """Whether torch.compile makes faster kernels for the devices than torch's own."""
    nodes: int = 1
    """Machines like this one that a run takes together; above 1 only where a sweep is planned for a cluster."""

    @property
    def shared(self) -> bool:
        """Whether runs share one device, which is the host."""
        return self.memory_bytes is None

    def part(self, devices: int) -> Machine:
        """Return the part of the machine that a run with this number of devices gets."""
        return replace(self, devices=self.devices[:devices])

    def count(self) -> int:
        """Return the number of devices."""
        return len(self.devices)

    def fuses(self) -> bool:
        """Return whether torch.compile makes faster kernels for the devices than torch's own."""
        return self.compiles

    def memory_capacity_bytes(self) -> int | None:
        """Return the memory of one device; None where it is the host's."""
        return self.memory_bytes


def find_machine(device: str) -> Machine:
    """Return the machine's devices of this type, or of the type that `auto` finds.

    Raises:
        ConfigError: no device can be used; the message says why.
    """
    done = subprocess.run(
        module_command("efficientbench.sweep.machine", device), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ConfigError(done.stderr.strip().rpartition("\n")[2] or f"device={device} cannot be examined")
    found = json.loads(done.stdout.splitlines()[-1])
    return Machine(**{**found, "devices": tuple(found["devices"])})


def planned_machine(device: str, nodes: int, devices_per_node: int) -> Machine:
    """Return machines that need not be available, from the table of devices.

    Args:
        device: a name in the table, like 'H100 SXM'.
        nodes: machines that each run takes together.
        devices_per_node: devices of each machine.

    Raises:
        ConfigError: the memory of such a device does not follow from its name.
        MetricsError: the table lacks the device.
    """
    known = known_device(device)
    if known.memory_bytes is None:
        raise ConfigError(f"--device: the memory of {known.name} does not follow from its name")
    kind = device_of_backend(known.backend)
    return Machine(
        type=kind.type,
        name=known.name,
        devices=tuple(map(str, range(devices_per_node))),
        memory_bytes=int(known.memory_bytes),
        runtime_bytes=kind.runtime_bytes,
        visibility=kind.visibility,
        compiles=kind.fuses(),
        nodes=nodes,
    )


def parallel_runs(jobs: str, machine: Machine) -> int | None:
    """Return the number of runs at once that `--jobs` names, or None for `auto`.

    Raises:
        ConfigError: `jobs` is neither a number nor `auto`, or more runs than devices.
    """
    if jobs == "auto":
        return None
    if not re.fullmatch("[0-9]{1,4}", jobs) or not 1 <= int(jobs) <= MOST_RUNS:
        raise ConfigError(f"--jobs: {jobs[:40]!r} is neither auto nor a number from 1 to {MOST_RUNS:,}")
    if not machine.shared and int(jobs) > len(machine.devices):
        raise ConfigError(
            f"--jobs: {jobs} runs cannot have devices of their own: this machine has {len(machine.devices)}"
        )
    return int(jobs)


def slots(machine: Machine, jobs: int | None) -> tuple[str, ...]:
    """Return the slots that runs occupy: the devices, or on a shared device one slot for each run at once."""
    if machine.shared:
        return tuple(str(place) for place in range(jobs or 1))
    # All runs get equal parts. Devices that remain are not slots: they would start one run more.
    return machine.devices if jobs is None else machine.devices[: len(machine.devices) // jobs * jobs]


def slots_needed(machine: Machine, jobs: int | None, ranks: int | None) -> int:
    """Return the slots that one run takes: an equal part of the devices, or with `auto` (None) one for each rank.

    `ranks` is None for a run that takes all devices it can see.
    """
    if machine.shared:
        return 1
    if jobs is not None:
        return len(machine.devices) // jobs
    return len(machine.devices) if ranks is None else min(ranks, len(machine.devices))


def slot_environment(
    machine: Machine, chosen: Sequence[str], jobs: int | None, ranks: int, base: Mapping[str, str]
) -> dict[str, str]:
    """Return `base` with the variable that limits a run to its devices, or on a CPU to its part of the cores."""
    environment = dict(base)
    if machine.visibility is not None:
        environment[machine.visibility] = ",".join(chosen)
    elif jobs is not None and jobs > 1:
        threads = len(os.sched_getaffinity(0)) // (jobs * ranks)
        environment.setdefault("OMP_NUM_THREADS", str(max(1, threads)))
    return environment


def main() -> None:
    """Print the machine as JSON; if there is none, print the error to stderr and exit with code 2."""
    try:
        device = find_device(sys.argv[1])
    except DeviceError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    machine = Machine(
        type=device.type,
        name=device.names()[0],
        devices=tuple(device.visible(os.environ)),
        memory_bytes=device.memory_capacity_bytes(),
        runtime_bytes=device.runtime_bytes,
        visibility=device.visibility,
        compiles=device.fuses(),
    )
    print(json.dumps(asdict(machine)))


if __name__ == "__main__":
    main()
