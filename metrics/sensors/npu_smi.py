"""Ascend NPUs through `npu-smi info watch`, the driver's command-line tool. Never run on an NPU.

One tool runs for the whole measurement and prints a line for each chip once a second, its fastest. Written from
Huawei's "npu-smi Command Reference" and from output that others published; columns are found by their titles, since
they vary with the driver, and a line that does not fit its title is passed over.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from metrics.errors import MetricsError
from metrics.sensors.ascend import NO_ALLOCATOR, NO_COUNTER, NO_REGISTER, Chip, choose_chips
from metrics.sensors.base import DeviceInfo, Sample, Scope, Sensor
from metrics.sensors.host import machine_uuid

_PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/local/Ascend/driver/tools")
_PATIENCE_S = 5.0
"""A tool that has printed nothing for so long has nothing to say of now."""
_BYTES_PER_MB = 1 << 20
_TITLES = {"power_w": "Pwr(W)", "utilization": "AI Core(%)", "memory": "Memory(%)"}


def find_tool(places: Sequence[str] = _PLACES) -> str | None:
    """The path of npu-smi, or None."""
    return shutil.which("npu-smi") or shutil.which("npu-smi", path=os.pathsep.join(places))


def parse_mapping(text: str) -> list[Chip]:
    """The chips of `npu-smi info -m`; controllers of a card have no logical id and are left out."""
    titles: list[str] = []
    chips = []
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if "Chip Logic ID" in cells:
            titles = cells
        elif titles and len(cells) == len(titles):
            row = dict(zip(titles, cells, strict=True))
            numbers = [row.get(title, "") for title in ("NPU ID", "Chip ID", "Chip Logic ID")]
            if all(number.isdigit() for number in numbers):
                card, chip, logic_id = map(int, numbers)
                chips.append(Chip(card, chip, logic_id, row.get("Chip Name", "Ascend NPU")))
    return chips


class WatchParser:
    """Turns the lines of `npu-smi info watch` into readings."""

    def __init__(self) -> None:
        self._titles: list[str] = []

    def read(self, line: str) -> tuple[tuple[int, int], dict[str, float]] | None:
        """(card, chip) and what the line says of it by title, numbers alone; None for a title or anything else."""
        cells = re.split(r"\s{2,}|\t+", line.strip())
        if cells[0].startswith("NpuID"):
            # The titles before Memory(%) may be set close together; each ends with its unit in brackets.
            self._titles = re.findall(r"\S[^()]*\([^)]*\)", line)
            return None
        values = line.split()
        if not self._titles or len(values) != len(self._titles) or not (values[0] + values[1]).isdigit():
            return None
        found = {title: float(v) for title, v in zip(self._titles, values, strict=True) if _is_number(v)}
        return (int(values[0]), int(values[1])), found


class NpuSmiSensor(Sensor):
    """Memory, AI core utilization and power of Ascend NPUs, once a second; memory to a hundredth of the capacity.

    Args:
        indices: the devices by their place among the visible ones, as torch counts them; all by default.
        environment: where ASCEND_RT_VISIBLE_DEVICES is looked up.
        tool: path of npu-smi; found on the PATH or in the driver's folders by default.
    """

    name = "npu-smi"
    scope: Scope = "npu"
    fastest_interval_s = 1.0

    def __init__(
        self,
        indices: Sequence[int] | None = None,
        environment: Mapping[str, str] = os.environ,
        tool: str | None = None,
    ) -> None:
        self.unavailable: dict[str, str] = {}
        self._indices = indices
        self._environment = environment
        self._tool = tool
        self._process: subprocess.Popen[str] | None = None
        self._readings: dict[tuple[int, int], tuple[float, dict[str, float]]] = {}
        self._devices: dict[tuple[int, int], DeviceInfo] = {}

    def open(self) -> None:
        """Find the chips, start the tool, wait for its first lines.

        Raises:
            MetricsError: no tool, no visible chip, or nothing printed.
        """
        tool = self._tool or find_tool()
        if tool is None:
            raise MetricsError("npu-smi is not installed, or not on the PATH")
        for chip in choose_chips(parse_mapping(_run(tool, "info", "-m")), self._indices, self._environment):
            uuid = f"NPU-{machine_uuid()}-{chip.card}-{chip.chip}"
            capacity = _capacity_bytes(_run(tool, "info", "-t", "usages", "-i", str(chip.card), "-c", str(chip.chip)))
            self._devices[chip.card, chip.chip] = DeviceInfo(uuid, chip.name, capacity, "driver")
        self._start(tool)
        self._await_first_lines()
        self.unavailable = {
            "energy_j": NO_COUNTER,
            **dict.fromkeys(("busy_s", "used_bytes"), NO_REGISTER),
            **dict.fromkeys(("allocated_bytes", "reserved_bytes"), NO_ALLOCATOR),
        }
        for place, info in self._devices.items():
            _, reading = self._readings[place]
            for quantity, title in _TITLES.items():
                field = "memory_used_bytes" if quantity == "memory" else quantity
                if title not in reading:
                    self.unavailable[field] = f"npu-smi prints no {title} for {info.uuid}"
            if info.memory_capacity_bytes is None:
                self.unavailable["memory_used_bytes"] = f"npu-smi prints no memory capacity for {info.uuid}"

    def devices(self) -> list[DeviceInfo]:
        return list(self._devices.values())

    def sample(self, time_s: float) -> list[Sample]:
        if self._process is None or self._process.poll() is not None:
            raise MetricsError("npu-smi info watch has ended")
        samples = []
        for place, info in self._devices.items():
            read_s, reading = self._readings[place]
            if time.monotonic() - read_s > _PATIENCE_S:
                continue
            percent, capacity = reading.get(_TITLES["memory"]), info.memory_capacity_bytes
            used = None if percent is None or capacity is None else percent / 100 * capacity
            busy = reading.get(_TITLES["utilization"])
            busy = busy / 100 if busy is not None and 0 <= busy <= 100 else None
            samples.append(Sample(time_s, info.uuid, used, busy, reading.get(_TITLES["power_w"]) or None))
        return samples

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _start(self, tool: str) -> None:
        command = [tool, "info", "watch", "-d", "1", "-s", "pam"]
        line_by_line = shutil.which("stdbuf")  # a tool that writes into a pipe keeps kilobytes back
        self._process = subprocess.Popen(
            [line_by_line, "-oL", *command] if line_by_line else command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        arguments = (self._process.stdout,)
        threading.Thread(target=self._listen, args=arguments, name="npu-smi-watch", daemon=True).start()

    def _listen(self, lines: IO[str]) -> None:
        parser = WatchParser()
        with lines:
            for line in lines:
                if (found := parser.read(line)) is not None:
                    place, reading = found
                    self._readings[place] = (time.monotonic(), reading)

    def _await_first_lines(self) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while not all(place in self._readings for place in self._devices):
            if time.monotonic() > until_s:
                raise MetricsError(f"npu-smi info watch has printed no reading of every NPU within {_PATIENCE_S:g} s")
            time.sleep(0.02)


def _run(tool: str, *arguments: str) -> str:
    try:
        done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=30, check=True)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines()
        raise MetricsError(f"{Path(tool).name} {' '.join(arguments)} failed: {said[-1] if said else error}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise MetricsError(f"{Path(tool).name} {' '.join(arguments)} failed: {error}") from None
    return done.stdout


def _capacity_bytes(text: str) -> int | None:
    """The capacity in what `npu-smi info -t usages` prints: of the high-bandwidth memory, else of the DDR."""
    for kind in ("HBM", "DDR", "Memory"):
        found = re.search(rf"{kind} Capacity\(MB\)\s*:\s*(\d+)", text)
        if found and int(found[1]) > 0:
            return int(found[1]) * _BYTES_PER_MB
    return None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None
