"""What this machine has, what it lacks for which purpose, and how to mend that."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from rich.console import Console
from rich.text import Text

from efficientbench.config.schema import DataConfig, RunConfig, TrainingConfig
from efficientbench.devices.base import DTYPES, Device, all_devices, device_called
from efficientbench.doctor.ascend import ascend_findings
from efficientbench.doctor.finding import Finding, print_findings
from efficientbench.doctor.step import step_findings
from efficientbench.metrics import AllocatorSensor
from efficientbench.metrics.cgroup import memory_limit_bytes, usable_cores
from efficientbench.metrics.hardware import peak_flops
from efficientbench.metrics.monitoring.measurement import SensorState
from efficientbench.metrics.monitoring.sensor_registry import device_sensors, examine
from efficientbench.metrics.sensors.base import Sensor

PACKAGES = ("torch", "megatron-core", "numpy", "transformers", "tokenizers", "tensorboard")


def doctor() -> int:
    """Print what was found; returns 0 where something can be trained here, else 1."""
    console = Console()
    packages = _packages()
    print_findings(console, "Packages", packages)
    missing = [finding.name for finding in packages if not finding.serves]
    usable: list[Device] = []
    if _import_problem("torch") is None:
        every = all_devices()
        found = [device for device in every if device.unavailable_reason() is None]
        usable = [device for device in found if device.backend_unavailable_reason() is None]
        print_findings(console, "Devices", [_device(device) for device in every])
        print_findings(console, "Collective backends", [_backend(device) for device in every])
        measures = [finding for device in every for finding in _measurement(device, device in found)]
        print_findings(console, "Measurement", measures)
    print_findings(console, "Host", _host())
    if missing or not usable:
        lacking = f"mend {', '.join(missing)} first" if missing else "no device type has its collective backend"
        console.print(Text(f"Nothing can be trained here: {lacking}.", style="bold red"), soft_wrap=True)
        return 1
    console.print(Text(f"Runs train here on {usable[0].type}. A first one:", style="bold green"), soft_wrap=True)
    console.print("  efficientbench run gqa_1.5B --smoke", highlight=False)
    return 0


def examine_device(name: str) -> int:
    """Print whether this machine can train on one device type, a step on each device included; 0 where it can, else 1.

    Raises:
        DeviceError: there is no device type of this name.
    """
    console = Console()
    device = device_called(name)
    findings = list(ascend_findings()) if device.telemetry == "ascend" else []
    findings += [_device(device), _backend(device)]
    measures = list(_measurement(device, findings[-2].serves))
    if findings[-2].serves:
        findings += step_findings(device)
    else:
        findings.append(Finding("step", False, "not tried, since the device type cannot be used"))
    print_findings(console, f"Training on {device.type}", findings)
    print_findings(console, "Measurement", measures)
    failed = [finding.name for finding in findings if not finding.serves]
    if failed:
        text = f"{device.type} cannot be trained on here: see {', '.join(dict.fromkeys(failed))} above."
        console.print(Text(text, style="bold red"), soft_wrap=True)
        return 1
    console.print(Text(f"Runs train here on {device.type}.", style="bold green"), soft_wrap=True)
    return 0


def _packages() -> list[Finding]:
    """Python and what runs import, against the ranges that the package declares."""
    python = ".".join(map(str, sys.version_info[:3]))
    requirements = _requirements()
    serves = requirements["python"].specifier.contains(python) if "python" in requirements else True
    wanted = f"; {requirements['python'].specifier} is needed" if not serves else ""
    findings = [Finding("python", serves, f"{python}{wanted}")]
    if not requirements:
        text = "is on the import path and not installed, so its version ranges are unknown and not checked"
        findings.append(Finding("efficientbench", True, text))
    return findings + [_package(name, requirements.get(name)) for name in PACKAGES]


def _requirements() -> dict[str, Requirement]:
    """What the installed package asks for, by name; `python` among it. Empty where it is not installed."""
    try:
        about = metadata.metadata("efficientbench")
    except metadata.PackageNotFoundError:
        return {}
    wanted = [Requirement(text) for text in about.get_all("Requires-Dist") or []]
    found = {each.name: each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})}
    return {"python": Requirement(f"python{about['Requires-Python']}"), **found}


def _package(name: str, wanted: Requirement | None) -> Finding:
    asked = str(wanted) if wanted else name
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, False, "not installed", f"pip install -c constraints.txt '{asked}'")
    if wanted is not None and not wanted.specifier.contains(version, prereleases=True):
        return Finding(name, False, version, f"pip install -c constraints.txt '{asked}'")
    problem = _import_problem(name) if name == "torch" else None
    if problem is not None:
        return Finding(name, False, f"{version} does not import: {problem}", "a torch built for this machine")
    return Finding(name, True, version)


def _import_problem(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        # The last is torch's where a vendor's extension, which it loads by itself, does not import.
        return str(error)
    return None


def _device(device: Device) -> Finding:
    reason = device.unavailable_reason()
    if reason is not None:
        return Finding(device.type, False, reason, device.remedy)
    capacity_bytes = device.memory_capacity_bytes()
    memory = f"{memory_limit_bytes() / 1e9:.1f} GB of the host"
    if capacity_bytes is not None:
        memory = f"{capacity_bytes / 1e9:.1f} GB each"
    unsupported = device.unsupported_dtypes()
    parts = [
        f"{device.count()} × {device.names()[0]}, {memory}",
        f"computes in {', '.join(dtype for dtype in DTYPES if dtype not in unsupported)}",
        *unsupported.values(),
        *filter(None, map(device.dtype_warning, DTYPES)),
        *(f"{name} {version}" for name, version in device.versions().items()),
    ]
    return Finding(device.type, True, "; ".join(parts))


def _backend(device: Device) -> Finding:
    reason = device.backend_unavailable_reason()
    if reason is not None:
        return Finding(device.backend, False, f"for {device.type}: {reason}")
    return Finding(device.backend, True, f"for {device.type}: in this torch")


def _sensors(device: Device, usable: bool) -> list[Sensor]:
    """Return all sensors that read a device type."""
    sensors = device_sensors(device.telemetry)
    allocator = device.allocator() if usable else None
    return sensors if allocator is None else [*sensors, AllocatorSensor(allocator, 0, device.names()[0])]


def _measurement(device: Device, usable: bool) -> Iterator[Finding]:
    """Yield what the sensors of a device type read here, and why the rest is missing."""
    for sensor in _sensors(device, usable):
        state = examine(sensor)
        if state.failure is not None:
            yield Finding(device.type, False, f"sensor {state.failure}")
        else:
            yield from _readings(device.type, sensor, state)
    if usable:
        yield _flops(device)


def _readings(name: str, sensor: Sensor, state: SensorState) -> Iterator[Finding]:
    given = [figure for quantity, figure in sensor.figures.items() if quantity not in state.unavailable]
    scope = f" of {state.scope}" if state.name == "rapl" else ""
    yield Finding(name, True, f"sensor {state.name}: {', '.join(given)}{scope}")
    missing: dict[str, list[str]] = {}
    for quantity, figure in sensor.figures.items():
        if quantity in state.unavailable:
            missing.setdefault(state.unavailable[quantity], []).append(figure)
    for reason, figures in missing.items():
        yield Finding(name, False, f"no {', '.join(figures)}: {reason}", sensor.remedy)


def _flops(device: Device) -> Finding:
    dtype = TrainingConfig().dtype
    peak, source = peak_flops(device.names()[0], dtype)
    if peak is None:
        return Finding(device.type, False, f"no MFU in {dtype}: {source}", "measurement.peak_flops=FLOP/S")
    return Finding(device.type, True, f"MFU in {dtype}: against {peak / 1e12:,.1f} TFLOP/s ({source})")


def _host() -> list[Finding]:
    folders = {"output": RunConfig.model_fields["output"].default, "data.cache": DataConfig().cache}
    return [
        Finding("cores", True, f"{usable_cores():g} for this process"),
        Finding("memory", True, f"{memory_limit_bytes() / 1e9:.1f} GB for this process"),
        *(_folder(key, Path(default)) for key, default in folders.items()),
    ]


def _folder(key: str, path: Path) -> Finding:
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
    free = f"{path}: {shutil.disk_usage(existing).free / 1e9:.1f} GB free"
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(key, False, f"{free}, and {existing} cannot be written", f"{key}=FOLDER")
    return Finding(key, True, free)
