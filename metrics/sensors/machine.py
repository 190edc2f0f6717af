"""Reads what a Linux machine gives to the processes on it: cores, clocks, container, network; nothing secret."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from efficientbench.basics.cgroup import usable_cores
from efficientbench.basics.files import text_at
from efficientbench.metrics.formulas.device_use import MachineConditions
from efficientbench.metrics.sensors.host import processor_name

_IMAGE_NAMES = ("APPTAINER_NAME", "SINGULARITY_NAME")
"""Environment variables in which Apptainer and Singularity name the image's file."""


def machine_conditions(
    rank: int, root: Path = Path("/"), environment: Mapping[str, str] = os.environ
) -> MachineConditions:
    """Return what the machine gives to this process.

    Args:
        rank: this process's rank.
        root: the root of the file system.
        environment: the variables that name a container's kind and image.
    """
    processors = root / "sys/devices/system/cpu"
    governors = _values(processors, "cpu[0-9]*/cpufreq/scaling_governor")
    clocks_khz = [int(text) for text in _values(processors, "cpu[0-9]*/cpufreq/scaling_max_freq") if text.isdigit()]
    threads = text_at(processors / "smt/active")
    return MachineConditions(
        ranks=[rank],
        processor=processor_name(),
        cores=usable_cores(root=root),
        governor=" and ".join(sorted(set(governors))) or None,
        clock_max_mhz=max(clocks_khz) / 1e3 if clocks_khz else None,
        boost=_boost(processors),
        simultaneous_threads=threads == "1" if threads else None,
        is_virtual=_is_virtual(root),
        container=_container(root, environment),
        image=_image(root, environment),
        network=sorted([*_fabric(root), *_ethernet(root)]),
    )


def _boost(processors: Path) -> bool | None:
    """Return whether cores may exceed their nominal clock, by acpi-cpufreq or intel_pstate; None if neither says so."""
    allowed, forbidden = text_at(processors / "cpufreq/boost"), text_at(processors / "intel_pstate/no_turbo")
    if allowed:
        return allowed == "1"
    return forbidden == "0" if forbidden else None


def _is_virtual(root: Path) -> bool | None:
    """Return whether the processor runs under a hypervisor; None except on x86, which alone reports it."""
    flags = re.search(r"^flags\s*:(.*)$", text_at(root / "proc/cpuinfo"), re.MULTILINE)
    return None if flags is None else "hypervisor" in flags[1].split()


def _container(root: Path, environment: Mapping[str, str]) -> str | None:
    if "APPTAINER_CONTAINER" in environment or "SINGULARITY_CONTAINER" in environment:
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    # systemd's convention, which LXC and enroot follow too.
    return environment.get("container") or None


def _image(root: Path, environment: Mapping[str, str]) -> str | None:
    """Return the image's name without registry, folders and digest, which may identify its owner."""
    named = next((environment[name] for name in _IMAGE_NAMES if environment.get(name)), "")
    if not named:
        found = re.search(r'^image="(.+)"$', text_at(root / "run/.containerenv"), re.MULTILINE)
        named = found[1] if found else ""
    return named.rpartition("/")[2].partition("@")[0] or None


def _fabric(root: Path) -> list[str]:
    """Return kind and rate of each InfiniBand or RoCE port, such as 'InfiniBand 400 Gb/sec (4X NDR)'."""
    ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    return [f"{text_at(port / 'link_layer')} {text_at(port / 'rate')}" for port in ports if text_at(port / "rate")]


def _ethernet(root: Path) -> list[str]:
    """Return the rate of each Ethernet adapter that is up; virtual adapters report none, or -1."""
    found = []
    for adapter in sorted((root / "sys/class/net").glob("*")):
        # Reading the speed of an adapter that is down fails, and the text is then empty.
        speed = text_at(adapter / "speed")
        if speed.isdigit() and (adapter / "device").exists():
            found.append(f"Ethernet {int(speed) / 1e3:g} Gb/s")
    return found


def _values(folder: Path, pattern: str) -> list[str]:
    return [text for text in map(text_at, sorted(folder.glob(pattern))) if text]
