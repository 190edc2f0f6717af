"""Whether an Ascend machine can train, from its driver up to its collective backend. Never run on an NPU.

Where things lie and what they are called: the CANN Software Installation Guide, and the images that Huawei publishes.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.version import InvalidVersion, Version

from efficientbench.doctor.finding import Finding
from efficientbench.doctor.npu_smi import NpuState, find_tool, parse_table, parse_versions

MACHINES = ("x86_64", "aarch64")
HOME_NAMES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
"""Set by CANN's set_env.sh: the folder of the toolkit."""
SET_UP = "source launchers/setup_ascend.sh"
OCCUPIED = {
    "-8005": "the driver does not answer: another container holds the device, or this one was started without it",
    "-8020": "another container holds the device",
}
"""Return codes of the driver's start → what they mean, as its users found."""
TIME_LIMIT_S = 120


def ascend_findings(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Machine, driver, CANN, torch with torch_npu, HCCL, in the order in which each needs the one before."""
    machine = platform.machine()
    yield Finding("machine", machine in MACHINES, machine, "" if machine in MACHINES else " or ".join(MACHINES))
    yield from _driver()
    yield _cann(environ)
    yield _pairing()
    yield _hccl()


def _driver() -> Iterator[Finding]:
    files = sorted(glob.glob("/dev/davinci[0-9]*"))
    if not files:
        yield Finding(
            "driver",
            False,
            "no device file /dev/davinci0 on this machine",
            "the NPU driver; in a container also --device /dev/davinciN, /dev/davinci_manager, /dev/devmm_svm and "
            "/dev/hisi_hdc",
        )
    closed = [file for file in files if not os.access(file, os.R_OK | os.W_OK)]
    if closed:
        yield Finding("driver", False, f"{closed[0]} cannot be opened", "membership of this user in group HwHiAiUser")
    tool = find_tool()
    if tool is None:
        yield Finding("npu-smi", False, "not found", "npu-smi of the driver on the PATH: it tells health and power")
        return
    try:
        done = subprocess.run([tool, "info"], capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("npu-smi", False, f"npu-smi info failed: {error}")
        return
    yield from _told_by_npu_smi(done.returncode, done.stdout + done.stderr)


def _told_by_npu_smi(status: int, text: str) -> Iterator[Finding]:
    """What the driver's tool says of itself and of each NPU; `text` is what `npu-smi info` prints."""
    states = parse_table(text)
    if status != 0 or not states:
        said = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing")
        code = re.search(r"ret is (-\d+)", text)
        yield Finding("npu-smi", False, f"npu-smi info lists no NPU: {said}", OCCUPIED.get(code[1], "") if code else "")
        return
    versions = ", ".join(f"{name} {version}" for name, version in parse_versions(text))
    ill = [state for state in states if state.health not in ("OK", "Warning")]
    named = ", ".join(sorted({state.name for state in states}))
    yield Finding("npu-smi", not ill, f"{len(states)} × {named} ({versions})", _ill(ill))
    if any(state.name.removeprefix("Ascend").strip().startswith("310") for state in states):
        yield Finding("chips", False, "310 chips are made for inference and cannot train", "an Ascend 910")


def _ill(states: list[NpuState]) -> str:
    return "; ".join(f"NPU {state.card} healthy again, which is '{state.health}'" for state in states)


def _cann(environ: Mapping[str, str]) -> Finding:
    home = next((environ[name] for name in HOME_NAMES if environ.get(name)), None)
    if home is None:
        return Finding("CANN", False, f"its environment is not set ({' or '.join(HOME_NAMES)})", SET_UP)
    if not Path(home).is_dir():
        return Finding("CANN", False, f"{home} is no folder any more", SET_UP)
    version = cann_version(Path(home))
    return Finding("CANN", True, f"{version or 'of unknown version'} in {home}")


def cann_version(home: Path) -> str | None:
    """The toolkit's version from the file that its installer leaves, or None."""
    for name in (f"{platform.machine()}-linux/ascend_toolkit_install.info", "version.cfg", "compiler/version.info"):
        file = home / name
        if not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        match = re.search(r"^(?:version|Version|toolkit_running_version)=\[?([^\s\]]+)", text, re.MULTILINE)
        if match:
            return match[1].rpartition(":")[2]
    return None


def _pairing() -> Finding:
    found = {}
    for name in ("torch", "torch-npu"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            wanted = (
                "an image with torch and torch-npu, or torch-npu in torch's own version: bash launchers/setup_ascend.sh"
            )
            return Finding("torch-npu", False, f"{name} is not installed", wanted)
    text = f"torch {found['torch']}, torch-npu {found['torch-npu']}"
    if not paired(found["torch"], found["torch-npu"]):
        return Finding(
            "torch-npu", False, f"{text} do not belong together", "both in one version (major, minor, patch)"
        )
    problem = import_problem("torch_npu")
    return Finding(
        "torch-npu", problem is None, f"{text}{': ' + problem if problem else ''}", SET_UP if problem else ""
    )


def paired(torch_version: str, torch_npu_version: str) -> bool:
    """Whether torch and torch-npu are of one release: torch-npu 2.6.0.post3 belongs to torch 2.6.0."""
    try:
        return Version(torch_version).release == Version(torch_npu_version).release
    except InvalidVersion:
        return False


def import_problem(module: str) -> str | None:
    """Why a module does not import, or None; tried in a process of its own, since CANN may end the one it is in."""
    if importlib.util.find_spec(module) is None:
        return "is not installed"
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"does not import within {TIME_LIMIT_S} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return f"does not import: {lines[-1] if lines else f'exit status {done.returncode}'}"


def _hccl() -> Finding:
    """Its absence is a failure also for one NPU: a training without it would be a benchmark of something else."""
    try:
        ctypes.CDLL("libhccl.so")
    except OSError as error:
        return Finding("HCCL", False, f"libhccl.so cannot be loaded ({error})", f"CANN with HCCL, and {SET_UP}")
    return Finding("HCCL", True, "libhccl.so can be loaded")
