"""Ascend's sensor that reads npu-smi, on a script that prints published output; no NPU took part."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from efficientbench.metrics import EfficiencyMonitor, merge
from efficientbench.metrics.sensors.ascend.chips import Chip
from efficientbench.metrics.sensors.ascend.npu_smi import NpuSmiSensor
from efficientbench.metrics.sensors.ascend.npu_smi_text import WatchParser, parse_mapping
from efficientbench.metrics.sensors.base import Sample

MB = 1 << 20

MAPPING = """\
NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
2                              0                              0                              Ascend910B2
2                              1                              -                              Mcu
5                              0                              1                              Ascend910B2
"""
USAGES = """\
	NPU ID                         : 2
	Chip Count                     : 1

	DDR Capacity(MB)               : 0
	HBM Capacity(MB)               : 65536
	HBM Usage Rate(%)              : 5
	Aicore Usage Rate(%)           : 0
	Chip ID                        : 0
"""
TITLE = "NpuID(Idx)  ChipId(Idx) Pwr(W)      AI Core(%)  Memory(%)   "


def make_tool(folder: Path, lines: str, ends: bool = False, mapping: str = MAPPING, usages: str = USAGES) -> str:
    """npu-smi as a shell script."""
    tool = folder / "npu-smi"
    tool.write_text(
        f"""#!/bin/sh
case "$*" in
"info -m") cat <<'X'
{mapping}X
;;
"info -t usages"*) cat <<'X'
{usages}X
;;
"info watch"*) cat <<'X'
{lines}
X
{"exit 3" if ends else "exec sleep 60"}
;;
*) echo "unknown: $*" >&2; exit 1;;
esac
"""
    )
    tool.chmod(0o755)
    return str(tool)


def test_npu_smi_is_read_line_by_line(tmp_path: Path) -> None:
    rows = "2           0           90.1        34          5\nan error of the driver\n5  0  91.0  7  9"
    sensor = NpuSmiSensor(environment={}, tool=make_tool(tmp_path, f"{TITLE}\n{rows}"))
    sensor.open()
    try:
        first, second = sensor.sample(3.0)
    finally:
        sensor.close()
    assert (first.power_w, first.utilization) == (90.1, 0.34)
    assert first.memory_used_bytes == pytest.approx(0.05 * 65536 * MB)
    assert (second.power_w, second.utilization, second.time_s) == (91.0, 0.07, 3.0)
    assert [device.name for device in sensor.devices()] == ["Ascend910B2"] * 2
    assert sensor.unavailable["energy_j"].startswith("an Ascend NPU has no energy counter")


def test_npu_smi_that_ends_ends_its_series_alone(tmp_path: Path) -> None:
    rows = "2  0  90.1  34  5\n5  0  91.0  7  9"
    sensor = NpuSmiSensor(environment={}, tool=make_tool(tmp_path, f"{TITLE}\n{rows}", ends=True))
    with EfficiencyMonitor([sensor]) as monitor:
        time.sleep(0.2)
        with monitor.step(tokens=1):
            pass
    run = merge([monitor.finish()])
    assert len(run.step_times_s) == 1
    assert run.energy_j is None
    assert "npu-smi info watch has ended" in run.unavailable["energy_j"]


def test_npu_smi_without_a_column_says_so(tmp_path: Path) -> None:
    title = "NpuID(Idx)  ChipId(Idx) AI Core(%)"
    sensor = NpuSmiSensor([1], environment={}, tool=make_tool(tmp_path, f"{title}\n2  0  34\n5  0  -"))
    sensor.open()
    sensor.close()
    assert "prints no Pwr(W)" in sensor.unavailable["power_w"]
    assert "prints no AI Core(%)" in sensor.unavailable["utilization"]


def test_lines_of_every_published_width_are_read_and_garbage_is_not() -> None:
    parser = WatchParser()
    assert parser.read("2           0           90.1        34") is None  # before any title
    wide = (
        "NpuID(Idx)  ChipId(Idx) Pwr(W)      Temp(C)     AI Core(%)  AI Cpu(%)   Ctrl Cpu(%) Memory(%)   Memory BW(%)"
    )
    assert parser.read(wide) is None
    assert parser.read(
        "2           0           90.2        34          17          0           2           5           0"
    ) == (
        (2, 0),
        {
            **{"NpuID(Idx)": 2, "ChipId(Idx)": 0, "Pwr(W)": 90.2, "Temp(C)": 34, "AI Core(%)": 17, "AI Cpu(%)": 0},
            **{"Ctrl Cpu(%)": 2, "Memory(%)": 5, "Memory BW(%)": 0},
        },
    )
    for garbage in ("", "2 0", "dcmi module initialize failed", "a b c d e f g h i", "-1 0 1 1 1 1 1 1 1"):
        assert parser.read(garbage) is None


def test_the_mapping_leaves_controllers_out() -> None:
    assert parse_mapping(MAPPING) == [Chip(2, 0, 0, "Ascend910B2"), Chip(5, 0, 1, "Ascend910B2")]
    assert parse_mapping("dcmi module initialize failed. ret is -8005\n") == []


def first_samples(tool: str, indices: list[int] | None = None) -> tuple[NpuSmiSensor, list[Sample]]:
    sensor = NpuSmiSensor(indices, environment={}, tool=tool)
    sensor.open()
    try:
        return sensor, sensor.sample(0.0)
    finally:
        sensor.close()


A3 = """\
	NPU ID                         Chip ID                        Chip Logic ID                  Chip Phy-ID                    Chip Name
	0                              0                              0                              0                              Ascend910
	0                              1                              1                              1                              Ascend910
	0                              2                              -                              -                              Mcu
"""  # noqa: E501


def test_npu_smi_halves_the_power_of_an_a3s_card(tmp_path: Path) -> None:
    rows = "NpuID(Idx)  ChipId(Idx) Pwr(W)      AI Core(%)  Memory(%)\n0  0  178.5  40  60\n0  1  -  42  61"
    tool = make_tool(tmp_path, rows, mapping=A3)
    sensor, samples = first_samples(tool)
    assert [sample.power_w for sample in samples] == [89.25, 89.25]
    assert [sample.utilization for sample in samples] == [0.4, 0.42]
    assert "power_w" not in sensor.unavailable
    sensor, (alone,) = first_samples(tool, [0])
    assert (alone.power_w, alone.utilization) == (None, 0.4)
    assert "one power for its 2 NPUs" in sensor.unavailable["power_w"]


def test_npu_smi_of_a_310p_has_no_power_and_of_a_910_no_on_chip_memory(tmp_path: Path) -> None:
    rows = f"{TITLE}\n2  0  NA  34  4\n5  0  NA  7  4"
    sensor, (first, _) = first_samples(make_tool(tmp_path, rows, usages="DDR Capacity(MB) : 44280\n"))
    assert (first.power_w, first.memory_used_bytes) == (None, pytest.approx(0.04 * 44280 * MB))
    assert "prints no Pwr(W)" in sensor.unavailable["power_w"]
    both = "DDR Capacity(MB) : 15171\nHBM Capacity(MB) : 32768\n"
    sensor, (first, _) = first_samples(make_tool(tmp_path, rows, usages=both))
    assert first.memory_used_bytes is None
    assert "the DDR's share" in sensor.unavailable["memory_used_bytes"]


def test_npu_smi_of_a_950_has_no_chips_in_its_cards(tmp_path: Path) -> None:
    mapping = "NPU ID          Slot ID          Chip ID          Chip Phy-ID          Chip Name\n"
    mapping += "0               0                0                0                    Ascend950PR\n"
    tool = Path(make_tool(tmp_path, "NpuID(Idx)  Pwr(W)      AI Core(%)  Memory(%)\n0  290.4  16  3", mapping=mapping))
    # Its tool refuses -c.
    tool.write_text(
        tool.read_text().replace('case "$*" in', 'case "$*" in\n*" -c "*) echo "Error parameter"; exit 1;;')
    )
    _, (sample,) = first_samples(str(tool))
    assert (sample.power_w, sample.utilization) == (290.4, 0.16)
    assert sample.memory_used_bytes == pytest.approx(0.03 * 65536 * MB)
