"""Check what this machine has, what it lacks for which purpose, and how to mend that."""

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

from efficientbench.basics.cgroup import memory_limit_bytes, usable_cores
from efficientbench.basics.grouped import grouped
from efficientbench.basics.language import in_users_language
from efficientbench.basics.plugins import installed
from efficientbench.config.matrix import EXPERIMENTS
from efficientbench.config.schema import DataConfig, RunConfig
from efficientbench.config.training import TrainingConfig
from efficientbench.devices.base import DTYPES, Device
from efficientbench.devices.registry import all_devices, device_called
from efficientbench.doctor.ascend import machine_checks
from efficientbench.doctor.check import Check, print_checks
from efficientbench.doctor.finetuning import finetuning_check
from efficientbench.doctor.step import step_checks
from efficientbench.launchers.files import FROM_CLONE
from efficientbench.metrics import AllocatorSensor
from efficientbench.metrics.monitoring.measurement import SensorState
from efficientbench.metrics.monitoring.meters import ENTRY_POINTS as METERS
from efficientbench.metrics.monitoring.sensor_registry import device_sensors, examine
from efficientbench.metrics.records.environment import version_of
from efficientbench.metrics.sensors.base import Sensor
from efficientbench.metrics.sensors.hardware import peak_flops
from efficientbench.planning.basis import find_calibration

INSTALL = "pip install 'efficientbench[train]'"
"""What a wheel's installation needs to train."""
OPTIONAL = {
    "transformer-engine": "where installed: its AdamW, and its attention as kernels.attention=te",
    "apex": "where installed: its AdamW without Transformer Engine's, and weight gradients added in the product",
}
"""Package that nothing needs → what it is used for where it is installed."""
PACKAGES = ("torch", "megatron-core", "numpy", "transformers", "tokenizers", "tensorboard")


def check_machine() -> int:
    """Check packages, devices, sensors and host, and print the report; return 0 if this machine can train, else 1."""
    console = Console()
    packages = _packages()
    print_checks(console, "Packages", packages)
    print_checks(console, "Fine-tuning", [finetuning_check()])
    missing = [check.name for check in packages if not check.passed]
    usable: list[Device] = []
    if _import_problem("torch") is None:
        devices = all_devices()
        available = [device for device in devices if device.unavailable_reason() is None]
        usable = [device for device in available if device.backend_unavailable_reason() is None]
        print_checks(console, "Devices", [_device(device) for device in devices])
        print_checks(console, "Collective backends", [_backend(device) for device in devices])
        sensors = [check for device in devices for check in _measurement(device, device in available)]
        print_checks(console, "Measurement", [*sensors, *_meters()])
    print_checks(console, "Host", _host())
    if missing or not usable:
        lacking = f"mend {', '.join(missing)} first" if missing else "no device type has its collective backend"
        _print_end(console, f"Nothing can be trained here: {lacking}.", works=False)
        return 1
    _print_end(console, f"Runs train here on {usable[0].type}. A first one:", works=True)
    console.print("  efficientbench run gqa_1.5B --smoke", highlight=False)
    return 0


def check_device(name: str) -> int:
    """Check one device type, with a training step on each device; return 0 if this machine can train on it, else 1.

    Raises DeviceError: there is no device type of this name.
    """
    console = Console()
    device = device_called(name)
    checks = machine_checks(device.type)
    usable = _device(device)
    not_tried = Check("step", False, "not tried, since the device type cannot be used")
    checks += [usable, _backend(device), *(step_checks(device) if usable.passed else [not_tried])]
    print_checks(console, f"Training on {device.type}", checks)
    print_checks(console, "Measurement", [*_measurement(device, usable.passed), *_meters()])
    failed = [check.name for check in checks if not check.passed]
    if failed:
        text = f"{device.type} cannot be trained on here: see {', '.join(dict.fromkeys(failed))} above."
        _print_end(console, text, works=False)
        return 1
    _print_end(console, f"Runs train here on {device.type}.", works=True)
    return 0


def _print_end(console: Console, text: str, works: bool) -> None:
    """Print the last line, in the user's language."""
    console.print(Text(in_users_language(text), style="bold green" if works else "bold red"), soft_wrap=True)


def _packages() -> list[Check]:
    """Check Python and the packages that runs import against the ranges that this package declares."""
    python = ".".join(map(str, sys.version_info[:3]))
    requirements = _requirements()
    if requirements:
        wanted = requirements["python"].specifier
        passed = wanted.contains(python)
        checks = [Check("python", passed, python if passed else f"{python}; {wanted} is needed")]
    else:
        unknown = "is on the import path and not installed, so its version ranges are unknown and not checked"
        checks = [Check("python", True, python), Check("efficientbench", True, unknown)]
    if not FROM_CLONE:
        examples = Path(sys.prefix) / "share" / "efficientbench" / "examples"
        place = f"{metadata.version('efficientbench')}, from a wheel: matrices in {EXPERIMENTS}, examples in {examples}"
        checks.append(Check("efficientbench", True, place))
    checks += [_package(name, requirements.get(name)) for name in PACKAGES]
    return checks + [_optional(name) for name in OPTIONAL]


def _optional(name: str) -> Check:
    """Return what a package would be used for that nothing needs, and whether it is here."""
    version = version_of(name) or "not installed, and nothing needs it"
    return Check(name, True, f"{version}; no run of this project had it; {OPTIONAL[name]}")


def _requirements() -> dict[str, Requirement]:
    """Return the installed package's requirements by name, with `python`; empty where it is not installed."""
    try:
        about = metadata.metadata("efficientbench")
    except metadata.PackageNotFoundError:
        return {}
    wanted = [Requirement(text) for text in about.get_all("Requires-Dist") or []]
    found = {each.name: each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})}
    return {"python": Requirement(f"python{about['Requires-Python']}"), **found}


def _package(name: str, wanted: Requirement | None) -> Check:
    install = f"pip install -c constraints.txt '{wanted or name}'" if FROM_CLONE else INSTALL
    version = version_of(name)
    if version is None:
        return Check(name, False, "not installed", install)
    if wanted is not None and not wanted.specifier.contains(version, prereleases=True):
        return Check(name, False, version, install)
    problem = _import_problem(name) if name == "torch" else None
    if problem is not None:
        return Check(name, False, f"{version} does not import: {problem}", "a torch built for this machine")
    return Check(name, True, version)


def _import_problem(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        # torch raises RuntimeError where a vendor's extension, which it loads on its own, does not import.
        return str(error)
    return None


def _device(device: Device) -> Check:
    reason = device.unavailable_reason()
    if reason is not None:
        return Check(device.type, False, reason, device.remedy)
    capacity_bytes = device.memory_capacity_bytes()
    host = f"{memory_limit_bytes() / 1e9:.1f} GB of the host"
    memory = host if capacity_bytes is None else f"{capacity_bytes / 1e9:.1f} GB each"
    unsupported = device.unsupported_dtypes()
    parts = [
        f"{device.count()} × {device.names()[0]}, {memory}",
        f"computes in {', '.join(dtype for dtype in DTYPES if dtype not in unsupported)}",
        *unsupported.values(),
        *filter(None, map(device.dtype_warning, DTYPES)),
        *(f"{name} {version}" for name, version in device.versions().items()),
    ]
    return Check(device.type, True, "; ".join(parts))


def _backend(device: Device) -> Check:
    reason = device.backend_unavailable_reason()
    return Check(device.backend, reason is None, f"for {device.type}: {reason or 'in this torch'}")


def _sensors(device: Device, usable: bool) -> list[Sensor]:
    """Return all sensors that read a device type."""
    sensors = device_sensors(device.type)
    allocator = device.allocator() if usable else None
    return sensors if allocator is None else [*sensors, AllocatorSensor(allocator, 0, device.names()[0])]


def _measurement(device: Device, usable: bool) -> Iterator[Check]:
    """Yield what the sensors of a device type read here, and why the rest is missing."""
    for sensor in _sensors(device, usable):
        state = examine(sensor)
        if state.failure is not None:
            yield Check(device.type, False, f"sensor {state.failure}")
        else:
            yield from _readings(device.type, sensor, state)
    if usable:
        yield _flops(device)
        yield _calibration(device)


def _readings(name: str, sensor: Sensor, state: SensorState) -> Iterator[Check]:
    by_reason = grouped((state.unavailable.get(quantity), figure) for quantity, figure in sensor.figures.items())
    scope = f" of {state.scope}" if state.name == "rapl" else ""
    yield Check(name, True, f"sensor {state.name}: {', '.join(by_reason.pop(None, []))}{scope}")
    for reason, figures in by_reason.items():
        yield Check(name, False, f"no {', '.join(figures)}: {reason}", sensor.remedy)


def _meters() -> list[Check]:
    """Return the installed meters by their packages' metadata; only a command that names a meter imports it."""
    return [
        Check("meter", True, f"installed: measurement.meters={name} ({place})")
        for name, place in installed(METERS).items()
    ]


def _flops(device: Device) -> Check:
    dtype = TrainingConfig().dtype
    peak, source = peak_flops(device.names()[0], dtype)
    if peak is None:
        instead = "a run measures mfu_of_measured_peak instead"
        return Check(device.type, False, f"no MFU in {dtype}: {source}; {instead}", "measurement.peak_flops=FLOP/S")
    return Check(device.type, True, f"MFU in {dtype}: against {peak / 1e12:,.1f} TFLOP/s ({source})")


def _calibration(device: Device) -> Check:
    """Return what projections on a device take, in the default cache folder."""
    folder = Path(DataConfig().cache)
    found = find_calibration(device.names()[0], folder, TrainingConfig().dtype)
    found = found or find_calibration(device.names()[0], folder, "fp32")
    if found is None:
        remedy = "efficientbench calibrate NAME, for a run's name"
        return Check(device.type, False, f"not calibrated: {folder} has no rates of this device", remedy)
    return Check(device.type, True, f"calibrated: {found.named}; {found.error}")


def _host() -> list[Check]:
    folders = {"output": RunConfig.model_fields["output"].default, "data.cache": DataConfig().cache}
    return [
        Check("cores", True, f"{usable_cores():g} for this process"),
        Check("memory", True, f"{memory_limit_bytes() / 1e9:.1f} GB for this process"),
        *(_folder(key, Path(default)) for key, default in folders.items()),
    ]


def _folder(key: str, path: Path) -> Check:
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
    free = f"{path}: {shutil.disk_usage(existing).free / 1e9:.1f} GB free"
    if os.access(existing, os.W_OK | os.X_OK):
        return Check(key, True, free)
    return Check(key, False, f"{free}, and {existing} cannot be written", f"{key}=FOLDER")
