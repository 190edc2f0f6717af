"""Parses what `npu-smi info` prints: the versions of tool and driver, and the health of each NPU.

The formats are those of the tool's published source (github.com/hicann/driver, npucli/src/npu_info_print.c), of
Huawei's "npu-smi Command Reference" and of output that users published: see tests/support/npu_smi_outputs.yaml.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass

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
    """Return the NPUs of the table, which has two lines for each; what is no such pair of lines is skipped."""
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
