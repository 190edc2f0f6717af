"""What npu-smi prints, over the generations of chips and drivers, and what can be read from it.

The formats are those of the tool's published sources (github.com/hicann/driver, npucli/src/npu_info_print.c), of
Huawei's "npu-smi Command Reference", and of output that users published; tests/support/npu_smi_outputs.yaml holds a
collection. Columns are found by their titles, and what does not fit its titles is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from efficientbench.metrics.sensors.ascend.chips import Chip

POWER, AI_CORE, MEMORY = "Pwr(W)", "AI Core(%)", "Memory(%)"
_BYTES_PER_MB = 1 << 20
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,6})?", re.ASCII)


@dataclass(frozen=True)
class Memory:
    """What `info -t usages` says of one chip's memory; None where it says nothing."""

    ddr_bytes: int | None
    hbm_bytes: int | None

    @property
    def capacity_bytes(self) -> int | None:
        """Of the on-chip memory, else of the DDR."""
        return self.hbm_bytes or self.ddr_bytes

    @property
    def watch_tells_it(self) -> bool:
        """Whether `info watch` gives the used share of this memory: of a chip with both (910 A) it gives the DDR's."""
        return not (self.hbm_bytes and self.ddr_bytes)


@dataclass(frozen=True)
class State:
    """One NPU in the table of `npu-smi info`; None where it says nothing."""

    card: int
    name: str
    health: str
    used_mb: int | None
    capacity_mb: int | None


def parse_mapping(text: str) -> list[Chip]:
    """The chips of `npu-smi info -m`; controllers of a card have no logical id and are left out.

    A 950 lists its NPUs by their logical ids, -1 for one that cannot be used, and has no column of that name.
    """
    titles: list[str] = []
    chips = []
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if {"NPU ID", "Chip ID", "Chip Name"} <= set(cells):
            titles = cells
        elif titles and len(cells) == len(titles):
            row = dict(zip(titles, cells, strict=True))
            logic_id = row.get("Chip Logic ID", row["NPU ID"])
            if all(_NUMBER.fullmatch(cell) and "." not in cell for cell in (row["NPU ID"], row["Chip ID"], logic_id)):
                name = row["Chip Name"].replace(" ", "") or "Ascend NPU"
                chips.append(Chip(int(row["NPU ID"]), int(row["Chip ID"]), int(logic_id), name))
    return chips


def parse_memory(text: str) -> Memory:
    """The first chip's memory in what `npu-smi info -t usages` prints."""
    found = {}
    for kind in ("DDR", "HBM", "Memory"):
        match = re.search(rf"^\s*{kind} Capacity\(MB\)\s*:\s*(\d{{1,12}})\s*$", text, re.MULTILINE | re.ASCII)
        found[kind] = int(match[1]) * _BYTES_PER_MB or None if match else None
    return Memory(found["DDR"] or found["Memory"], found["HBM"])


def parse_versions(text: str) -> Iterator[tuple[str, str]]:
    """(`npu-smi`, its version) and (`driver`, the driver's), from the head of what `npu-smi info` prints."""
    match = re.search(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)", text)
    if match:
        yield "npu-smi", match[1]
        yield "driver", match[2]


def parse_table(text: str) -> list[State]:
    """The NPUs of the table that `npu-smi info` prints, which has two lines for each.

    Memory is the last pair of used and present: the on-chip memory's, or the DDR's of a chip that has none.
    """
    states: list[State] = []
    first: tuple[int, str, str] | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.lstrip().startswith("|") or len(cells) not in (3, 4):
            first = None
            continue
        # A 950's table has a column for the id.
        head = cells[:2] if len(cells) == 4 else cells[0].split(maxsplit=1)
        health, last = cells[-2:]
        if first is None:
            known = len(head) == 2 and re.fullmatch(r"\d{1,9}", head[0], re.ASCII) and re.fullmatch("[A-Za-z]+", health)
            first = (int(head[0]), head[1], health) if known and head[1] else None
            continue
        pairs = re.findall(r"(\d{1,12})\s*/\s*(\d{1,12})", last, re.ASCII)
        used, capacity = map(int, pairs[-1]) if pairs else (None, None)
        states.append(State(*first, used, capacity))
        first = None
    return states


class WatchParser:
    """Turns the lines of `npu-smi info watch` into readings."""

    def __init__(self) -> None:
        self._titles: list[str] = []

    def read(self, line: str) -> tuple[tuple[int, int], dict[str, float]] | None:
        """(card, chip) and what the line says of it by title, numbers alone; None for a title or anything else.

        `NA` and `-`, for what a chip does not tell, are left out. A 950 has no chips in its cards: theirs is 0.
        """
        if line.strip().startswith("NpuID"):
            # Titles may be set close together; each ends with its unit in brackets.
            self._titles = re.findall(r"\S[^()]*\([^)]*\)", line)
            return None
        values = line.split()
        if not self._titles or len(values) != len(self._titles):
            return None
        told = zip(self._titles, values, strict=True)
        found = {title: float(value) for title, value in told if _NUMBER.fullmatch(value)}
        card, chip = found.get(self._titles[0]), 0.0
        if len(self._titles) > 1 and self._titles[1].startswith("ChipId"):
            chip = found.get(self._titles[1], -1.0)
        if card is None or not card.is_integer() or not chip.is_integer() or chip < 0:
            return None
        return (int(card), int(chip)), found
