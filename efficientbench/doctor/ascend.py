"""Checks of an Ascend machine, from its driver up to its collective backend. Never run on an NPU.

Sources of paths and names: the CANN Software Installation Guide, and the images that Huawei publishes.
"""

from __future__ import annotations

import ctypes
import glob
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from efficientbench.devices.npu import CANN_HOMES, INFERENCE, cann_version, family
from efficientbench.doctor.check import Check
from efficientbench.metrics.records.environment import version_of

# Parse what `npu-smi info` prints: the versions of tool and driver, and the health of each NPU.
#
# Sources of the formats: the tool's published source (github.com/hicann/driver, npucli/src/npu_info_print.c), Huawei's
# "npu-smi Command Reference" and output that users published: see tests/replicas/npu_smi_outputs.yaml.


_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/local/Ascend/driver/tools")


@dataclass(frozen=True)
class NpuState:
    """One NPU in the table of `npu-smi info`."""

    card: int
    name: str
    health: str


def find_tool() -> str | None:
    """Return the path of npu-smi, from the PATH or the driver's own folders, or None."""
    return shutil.which("npu-smi") or shutil.which("npu-smi", path=os.pathsep.join(_FOLDERS))


def parse_versions(text: str) -> dict[str, str]:
    """Return the versions of `npu-smi` and `driver` from the head of the table, by name; empty where it has none."""
    match = re.search(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)", text)
    return {"npu-smi": match[1], "driver": match[2]} if match else {}


def parse_table(text: str) -> list[NpuState]:
    """Return the NPUs of the table, which has two lines for each NPU; skip all other lines."""
    states: list[NpuState] = []
    lines = iter(text.splitlines())
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.lstrip().startswith("|") or len(cells) not in (3, 4):
            continue
        # A 950's table has a column for the id.
        head = cells[:2] if len(cells) == 4 else cells[0].split(maxsplit=1)
        is_id = len(head) == 2 and re.fullmatch(r"\d{1,9}", head[0], re.ASCII)
        if is_id and head[1] and re.fullmatch("[A-Za-z]+", cells[-2]):
            states.append(NpuState(int(head[0]), head[1], cells[-2]))
            next(lines, None)  # the second line of this NPU
    return states


MACHINES = ("x86_64", "aarch64")
SET_UP = "source launchers/setup_ascend.sh"
"""Remedy for a missing CANN environment."""
OCCUPIED = {
    "-8005": "the driver does not answer: another container holds the device, or this one was started without it",
    "-8020": "another container holds the device",
}
"""Return code at the driver's start → its meaning, as users of the driver have reported it."""
TIME_LIMIT_S = 120


def machine_checks(device_type: str) -> list[Check]:
    """Return the checks of what lies below torch for a device type; only Ascend NPUs have any."""
    return list(ascend_checks()) if device_type == "npu" else []


def ascend_checks(environ: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Check machine, driver, CANN, torch with torch_npu, and HCCL; each part needs the ones before it."""
    machine = platform.machine()
    known = machine in MACHINES
    yield Check("machine", known, machine, "" if known else " or ".join(MACHINES))
    yield from _driver()
    yield _cann(environ)
    yield _torch_npu()
    yield _hccl()


def _driver() -> Iterator[Check]:
    files = sorted(glob.glob("/dev/davinci[0-9]*"))
    if not files:
        yield Check(
            "driver",
            False,
            "no device file /dev/davinci0 on this machine",
            "the NPU driver; in a container also --device /dev/davinciN, /dev/davinci_manager, /dev/devmm_svm and "
            "/dev/hisi_hdc",
        )
    closed = [file for file in files if not os.access(file, os.R_OK | os.W_OK)]
    if closed:
        yield Check("driver", False, f"{closed[0]} cannot be opened", "membership of this user in group HwHiAiUser")
    tool = find_tool()
    if tool is None:
        yield Check("npu-smi", False, "not found", "npu-smi of the driver on the PATH: it reports health and power")
        return
    try:
        done = subprocess.run([tool, "info"], capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        yield Check("npu-smi", False, f"npu-smi info failed: {error}")
        return
    yield from _npu_smi(done.returncode, done.stdout + done.stderr)


def _npu_smi(status: int, text: str) -> Iterator[Check]:
    """Check the driver's tool and each NPU by the exit status and output of `npu-smi info`."""
    states = parse_table(text)
    if status != 0 or not states:
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing")
        code = re.search(r"ret is (-\d+)", text)
        yield Check("npu-smi", False, f"npu-smi info lists no NPU: {last}", OCCUPIED.get(code[1], "") if code else "")
        return
    versions = ", ".join(f"{name} {version}" for name, version in parse_versions(text).items())
    ill = [state for state in states if state.health not in ("OK", "Warning")]
    named = ", ".join(sorted({state.name for state in states}))
    remedy = "; ".join(f"NPU {state.card} healthy again, which is '{state.health}'" for state in ill)
    yield Check("npu-smi", not ill, f"{len(states)} × {named} ({versions})", remedy)
    # npu-smi names products without torch_npu's prefix.
    if any(family(f"Ascend{state.name.removeprefix('Ascend').strip()}") == INFERENCE for state in states):
        yield Check("chips", False, "310 chips are made for inference and cannot train", "an Ascend 910")


def _cann(environ: Mapping[str, str]) -> Check:
    home = next((environ[name] for name in CANN_HOMES if environ.get(name)), None)
    if home is None:
        return Check("CANN", False, f"its environment is not set ({' or '.join(CANN_HOMES)})", SET_UP)
    if not Path(home).is_dir():
        return Check("CANN", False, f"{home} is no folder any more", SET_UP)
    version = cann_version(Path(home))
    return Check("CANN", True, f"{version or 'of unknown version'} in {home}")


def _torch_npu() -> Check:
    torch, torch_npu = version_of("torch"), version_of("torch-npu")
    if torch is None or torch_npu is None:
        wanted = (
            "an image with torch and torch-npu, or torch-npu in torch's own version: bash launchers/setup_ascend.sh"
        )
        return Check("torch-npu", False, f"{'torch' if torch is None else 'torch-npu'} is not installed", wanted)
    both = f"torch {torch}, torch-npu {torch_npu}"
    if not paired(torch, torch_npu):
        return Check("torch-npu", False, f"{both} do not belong together", "both in one version (major, minor, patch)")
    return Check("torch-npu", True, both)


def paired(torch_version: str, torch_npu_version: str) -> bool:
    """Return whether torch and torch-npu are of one release; torch-npu 2.6.0.post3 belongs to torch 2.6.0."""
    try:
        return Version(torch_version).release == Version(torch_npu_version).release
    except InvalidVersion:
        return False


def _hccl() -> Check:
    # One NPU needs it too: a training without it would be a benchmark of something else.
    try:
        ctypes.CDLL("libhccl.so")
    except OSError as error:
        return Check("HCCL", False, f"libhccl.so cannot be loaded ({error})", f"CANN with HCCL, and {SET_UP}")
    return Check("HCCL", True, "libhccl.so can be loaded")
