"""Ascend NPUs through `npu-smi info watch`, the driver's command-line tool. Never run on an NPU.

One tool runs for the whole measurement and prints a line for each chip once a second, its fastest; npu_smi_text.py
reads what it prints.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.sensors.ascend.chips import (
    MOST_WATTS,
    NO_ALLOCATOR,
    NO_COUNTER,
    NO_REGISTER,
    Chip,
    Doubt,
    card_power_w,
    choose_chips,
)
from efficientbench.metrics.sensors.ascend.npu_smi_text import (
    AI_CORE,
    MEMORY,
    POWER,
    Memory,
    WatchParser,
    parse_mapping,
    parse_memory,
)
from efficientbench.metrics.sensors.base import DeviceInfo, Sample, Scope, Sensor
from efficientbench.metrics.sensors.host import machine_uuid

_PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/local/Ascend/driver/tools")
_PATIENCE_S = 5.0
"""A tool that has printed nothing for so long has nothing to say of now."""


def find_tool(places: Sequence[str] = _PLACES) -> str | None:
    """The path of npu-smi, or None."""
    return shutil.which("npu-smi") or shutil.which("npu-smi", path=os.pathsep.join(places))


class NpuSmiSensor(Sensor):
    """Memory, AI core utilization and power of Ascend NPUs, once a second; memory to a hundredth of the capacity.

    The tool gives one power for the two NPUs of an A3's card: each has half of it, and neither has any where not both
    are measured.

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
        self._all: list[Chip] = []
        self._devices: dict[Chip, DeviceInfo] = {}
        self._doubt = Doubt(self.unavailable)

    def open(self) -> None:
        """Find the chips, start the tool, wait for its first lines.

        Raises:
            MetricsError: no tool, no visible chip, or nothing printed.
        """
        tool = self._tool or find_tool()
        if tool is None:
            raise MetricsError("npu-smi is not installed, or not on the PATH")
        self._all = parse_mapping(_run(tool, "info", "-m"))
        memories = {}
        for chip in choose_chips(self._all, self._indices, self._environment):
            memory = memories[chip] = _memory(tool, chip)
            uuid = f"NPU-{machine_uuid()}-{chip.card}-{chip.chip}"
            self._devices[chip] = DeviceInfo(uuid, chip.name, memory.capacity_bytes, "driver")
        self._start(tool)
        self._await_first_lines()
        self.unavailable.update(
            {
                "energy_j": NO_COUNTER,
                **dict.fromkeys(("busy_s", "used_bytes"), NO_REGISTER),
                **dict.fromkeys(("allocated_bytes", "reserved_bytes"), NO_ALLOCATOR),
            }
        )
        for chip, memory in memories.items():
            self._note_missing(chip, memory)

    def _note_missing(self, chip: Chip, memory: Memory) -> None:
        """What the tool does not tell of a chip, with the reason."""
        reading, uuid = self._reading(chip), self._devices[chip].uuid
        for quantity, title in (("utilization", AI_CORE), ("memory_used_bytes", MEMORY)):
            if title not in reading:
                self.unavailable[quantity] = f"npu-smi prints no {title} for {uuid}"
        if memory.capacity_bytes is None:
            self.unavailable["memory_used_bytes"] = f"npu-smi prints no memory capacity for {uuid}"
        elif not memory.watch_tells_it:
            self.unavailable["memory_used_bytes"] = (
                f"npu-smi prints the DDR's share for {uuid}, not the on-chip memory's"
            )
        try:
            if self._power_w(chip) is None:
                self.unavailable["power_w"] = f"npu-smi prints no {POWER} for {uuid}"
        except MetricsError as error:
            self.unavailable["power_w"] = f"none for {uuid}: {error}"

    def devices(self) -> list[DeviceInfo]:
        return list(self._devices.values())

    def sample(self, time_s: float) -> list[Sample]:
        if self._process is None or self._process.poll() is not None:
            raise MetricsError("npu-smi info watch has ended")
        samples = []
        for chip, info in self._devices.items():
            if time.monotonic() - self._readings[chip.card, chip.chip][0] > _PATIENCE_S:
                continue
            reading = self._reading(chip)
            share = None if self._doubt.rules_out("memory_used_bytes") else reading.get(MEMORY)
            power = None if self._doubt.rules_out("power_w") else self._power_w(chip)
            share = self._doubt.checked("memory_used_bytes", share, 100, info.uuid)
            busy = self._doubt.checked("utilization", reading.get(AI_CORE), 100, info.uuid)
            power = self._doubt.checked("power_w", power, MOST_WATTS, info.uuid)
            samples.append(
                Sample(
                    time_s,
                    info.uuid,
                    None if share is None else share / 100 * (info.memory_capacity_bytes or 0),
                    None if busy is None else busy / 100,
                    power or None,  # no NPU runs on nothing
                )
            )
        return samples

    def _reading(self, chip: Chip) -> dict[str, float]:
        return self._readings[chip.card, chip.chip][1]

    def _power_w(self, chip: Chip) -> float | None:
        """The chip's own; of a card's power, printed with its first NPU alone, the chip's part."""
        dies = [die for die in self._all if die.card == chip.card]
        printed = [self._readings.get((die.card, die.chip), (0.0, {}))[1].get(POWER) for die in dies]
        if len(dies) > 1 and printed[0] is not None and not any(power is not None for power in printed[1:]):
            return card_power_w(printed[0], dies, list(self._devices))
        return self._reading(chip).get(POWER)

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
        while not all((chip.card, chip.chip) in self._readings for chip in self._devices):
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


def _memory(tool: str, chip: Chip) -> Memory:
    words = ("info", "-t", "usages", "-i", str(chip.card))
    try:
        return parse_memory(_run(tool, *words, "-c", str(chip.chip)))
    except MetricsError:
        return parse_memory(_run(tool, *words))  # a 950's tool knows no chips
