"""Parses what `npu-smi info` prints: the versions of tool and driver, and the health of each NPU.

The formats are those of the tool's published source (github.com/hicann/driver, npucli/src/npu_info_print.c), of
Huawei's "npu-smi Command Reference" and of output that users published: see tests/support/npu_smi_outputs.yaml.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
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


def parse_versions(text: str) -> Iterator[tuple[str, str]]:
    """Yield (`npu-smi`, its version) and (`driver`, the driver's version) from the head of the table."""
    match = re.search(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)", text)
    if match:
        yield "npu-smi", match[1]
        yield "driver", match[2]


def parse_table(text: str) -> list[NpuState]:
    """Return the NPUs of the table, which has two lines for each; what is no such pair of lines is skipped."""
    states: list[NpuState] = []
    is_second_line = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.lstrip().startswith("|") or len(cells) not in (3, 4):
            is_second_line = False
            continue
        if is_second_line:
            is_second_line = False
            continue
        # A 950's table has a column for the id.
        head = cells[:2] if len(cells) == 4 else cells[0].split(maxsplit=1)
        health = cells[-2]
        is_id = len(head) == 2 and re.fullmatch(r"\d{1,9}", head[0], re.ASCII)
        if is_id and head[1] and re.fullmatch("[A-Za-z]+", health):
            states.append(NpuState(int(head[0]), head[1], health))
            is_second_line = True
    return states
