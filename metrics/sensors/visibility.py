"""Finds the physical GPUs, or MIG slices, that CUDA_VISIBLE_DEVICES leaves to this process, as NVML handles.

Written from NVIDIA's description of the variable (CUDA Programming Guide, environment variables; MIG User Guide,
"Device Enumeration") and from how torch reads it (`torch.cuda._parse_visible_devices`): indices, UUIDs or unique
beginnings of UUIDs, MIG UUIDs, and the older MIG-GPU-<uuid>/<instance>/<compute instance>. The first entry decides the
kind of the list. An entry that matches no device ends the list; a device named twice leaves none visible. A process
sees one MIG slice at most, and then no whole GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from efficientbench.basics.errors import MetricsError

Handle = Any
"""An NVML device handle, opaque to us."""


def visible_handles(nvml: Any, environment: Mapping[str, str]) -> list[Handle]:
    """Return handles of the visible devices in CUDA's order.

    Args:
        nvml: the `pynvml` module, initialized.
        environment: usually `os.environ`.

    Raises:
        MetricsError: indices are ambiguous, since CUDA would sort GPUs of different models by speed, and NVML by bus.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    entries = [str(i) for i in range(len(handles))] if listed is None else _entries(listed)
    by_index = any(entry.isdigit() for entry in entries)
    if by_index and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        names = {nvml.nvmlDeviceGetName(handle) for handle in handles}
        if len(names) > 1:
            raise MetricsError(
                f"this machine has unlike GPUs ({', '.join(sorted(names))}), which CUDA sorts by speed and NVML by "
                "bus: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name devices by UUID"
            )
    visible: dict[str, Handle] = {}
    for entry in entries:
        handle = _find(nvml, handles, entry)
        if handle is None:
            break
        uuid = nvml.nvmlDeviceGetUUID(handle)
        if uuid in visible:
            return []
        visible[uuid] = handle
    slices = [handle for handle in visible.values() if not any(handle is whole for whole in handles)]
    return slices[:1] or list(visible.values())


def find_by_uuid(nvml: Any, uuid: str) -> Handle:
    """Return the handle of a GPU or MIG slice by its UUID, with or without the prefix 'GPU-'.

    Raises:
        MetricsError: this machine has no such device.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    handle = next((handle for name in names if (handle := _find(nvml, handles, name)) is not None), None)
    if handle is None:
        known = ", ".join(nvml.nvmlDeviceGetUUID(handle) for handle in handles) or "none"
        raise MetricsError(f"no GPU has the UUID {uuid}; NVML knows {known}")
    return handle


def mig_slices(nvml: Any, handle: Handle) -> list[Handle]:
    """Return the MIG slices of a GPU; empty if MIG is off or unknown to it."""
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return []
    slices = []
    for i in range(count):
        try:
            slices.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i))
        except nvml.NVMLError:
            continue  # slots may be empty
    return slices


def _entries(listed: str) -> list[str]:
    """Return the entries up to the first that differs in kind from the list's first; none if an entry comes twice."""
    found = []
    kind = next((prefix for prefix in ("GPU-", "MIG-") if listed.startswith(prefix)), None)
    for entry in listed.split(","):
        if kind is None:
            # CUDA reads numbers as strtoul does: blanks before, anything after; text without a number is negative.
            number = re.match(r"\s*\+?(\d+)", entry)
            entry = str(int(number[1])) if number else ""
        elif not entry.startswith(kind):
            break
        if entry in found:
            return []
        if not entry:
            break
        found.append(entry)
    return found


def _find(nvml: Any, handles: list[Handle], entry: str) -> Handle | None:
    if entry.isdigit():
        if int(entry) >= len(handles):
            return None
        # A process that names a GPU in MIG mode gets that GPU's first slice from CUDA.
        return next(iter(mig_slices(nvml, handles[int(entry)])), handles[int(entry)])
    if entry.startswith("MIG-GPU-"):
        return _find_instance(nvml, handles, entry.removeprefix("MIG-"))
    if entry.startswith("MIG-"):
        slices = [mig for handle in handles for mig in mig_slices(nvml, handle)]
        return _unique(nvml, slices, entry)
    if entry.startswith("GPU-"):
        handle = _unique(nvml, handles, entry)
        return None if handle is None else next(iter(mig_slices(nvml, handle)), handle)
    return None


def _find_instance(nvml: Any, handles: list[Handle], entry: str) -> Handle | None:
    uuid, _, instances = entry.partition("/")
    gpu = _unique(nvml, handles, uuid)
    for mig in mig_slices(nvml, gpu) if gpu is not None else ():
        if instances == f"{nvml.nvmlDeviceGetGpuInstanceId(mig)}/{nvml.nvmlDeviceGetComputeInstanceId(mig)}":
            return mig
    return None


def _unique(nvml: Any, handles: list[Handle], beginning: str) -> Handle | None:
    found = [handle for handle in handles if nvml.nvmlDeviceGetUUID(handle).startswith(beginning)]
    return found[0] if len(found) == 1 else None
