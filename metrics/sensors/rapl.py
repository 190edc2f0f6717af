"""Reads the energy of processors and their memory from the kernel's powercap tree (RAPL: Intel, and AMD's packages).

Names and files: Linux, Documentation/power/powercap/powercap.rst and drivers/powercap/intel_rapl_common.c. A zone
`package-N` holds its subzones `core` and `uncore`, which are therefore never added to it; `dram` is a domain of its
own beside the package; `psys` holds the whole platform, packages and memory with it. The tree `intel-rapl-mmio` shows
the registers of `intel-rapl` a second time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.sensors.base import (
    POWER_AND_ENERGY,
    QUANTITIES,
    Counters,
    DeviceInfo,
    Sample,
    Scope,
    Sensor,
)
from efficientbench.metrics.sensors.host import machine_uuid

_ROOT = Path("/sys/class/powercap")
_MICRO = 1e-6


@dataclass
class Zone:
    """One energy counter, which keeps growing although its register wraps around."""

    name: str
    energy: int
    """The counter's open file descriptor: opening the file for each reading costs more than reading it."""
    range_uj: int
    """The value at which the register wraps around to 0, µJ."""
    last_uj: int
    total_uj: int = 0

    def read_uj(self) -> int:
        """Return the energy used since the zone was opened, µJ."""
        # A register that wraps around twice between readings looks like one that wraps once. Samples in between prevent
        # it: a register of 32 bits lasts about an hour at 60 W.
        now_uj = int(os.pread(self.energy, 64, 0))
        used_uj = now_uj - self.last_uj
        self.total_uj += used_uj if used_uj >= 0 else used_uj + self.range_uj
        self.last_uj = now_uj
        return self.total_uj


class RaplSensor(Sensor):
    """Energy of all packages, and of their memory where every package counts it, as one device.

    Its scope is 'cpu-package', 'cpu-package+dram', or 'node' if the kernel has the platform's counter alone.

    Args:
        root: the powercap tree.
    """

    name = "rapl"
    scope: Scope = "cpu-package"
    is_slow = False
    figures = POWER_AND_ENERGY

    def __init__(self, root: Path = _ROOT) -> None:
        self.unavailable = {name: "RAPL knows energy only" for name in QUANTITIES if name not in self.figures}
        self._root = root
        self._uuid = f"RAPL-{machine_uuid()}"
        self._zones: list[Zone] = []
        self._last: tuple[float, float] | None = None

    def open(self) -> None:
        """Choose the zones.

        Raises:
            MetricsError: there is no zone, or one may not be read; the message says what would help.
        """
        found = sorted(self._root.glob("intel-rapl:*"))
        names = {folder: (folder / "name").read_text().strip() for folder in found if (folder / "name").exists()}
        packages = [folder for folder, name in names.items() if name.startswith("package-")]
        dram = [folder for folder, name in names.items() if name == "dram"]
        platform = [folder for folder, name in names.items() if name == "psys"]
        if packages:
            with_memory = len(dram) == len(packages)
            self.scope = "cpu-package+dram" if with_memory else "cpu-package"
            chosen = [*packages, *dram] if with_memory else packages
        elif platform:
            self.scope = "node"
            chosen = platform
        else:
            raise MetricsError(
                f"no RAPL zone in {self._root}: a virtual machine or container hides them, or the kernel module "
                "intel_rapl_msr is not loaded"
            )
        for folder in chosen:  # one by one, so that after a failure `close` closes the zones opened before
            self._zones.append(_zone(folder, names[folder]))

    def devices(self) -> list[DeviceInfo]:
        zones = " + ".join(zone.name for zone in self._zones)
        return [DeviceInfo(self._uuid, zones, None, "none")]

    def sample(self, time_s: float) -> list[Sample]:
        """Return the mean power since the last sample (None at the first)."""
        energy_j = self._energy_j()
        power_w = None
        if self._last is not None and time_s > self._last[0]:
            power_w = (energy_j - self._last[1]) / (time_s - self._last[0])
        self._last = (time_s, energy_j)
        return [Sample(time_s, self._uuid, power_w=power_w)]

    def counters(self) -> dict[str, Counters]:
        return {self._uuid: Counters(energy_j=self._energy_j())}

    def close(self) -> None:
        for zone in self._zones:
            os.close(zone.energy)
        self._zones, self._last = [], None

    def _energy_j(self) -> float:
        return sum(zone.read_uj() for zone in self._zones) * _MICRO


def _zone(folder: Path, name: str) -> Zone:
    energy = folder / "energy_uj"
    try:
        range_uj = int((folder / "max_energy_range_uj").read_text())
        last_uj = int(energy.read_text())
        return Zone(name, os.open(energy, os.O_RDONLY), range_uj, last_uj)
    except PermissionError:
        raise MetricsError(
            f"{energy} may be read by root alone, as kernels since 5.10 have it (CVE-2020-8694): run as root, or let "
            f"root do 'chmod a+r {energy}'"
        ) from None
    except (OSError, ValueError) as error:
        raise MetricsError(f"{folder} gives no energy ({error})") from None
