"""Which NPUs are measured, and DCMI's readings; no NPU took part.

The C library is compiled from declarations as documented, so that structures are laid out by a C compiler.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import metrics_parts
from support.repository import ROOT

from efficientbench.metrics import MetricsError
from efficientbench.metrics.formulas.device_use import DeviceSettings
from efficientbench.metrics.sensors.ascend import dcmi_library
from efficientbench.metrics.sensors.ascend.dcmi import DcmiSensor
from efficientbench.metrics.sensors.ascend.dcmi_library import Chip, choose_chips
from efficientbench.metrics.sensors.base import DeviceState, Sample
from efficientbench.metrics.sensors.host import machine_uuid

MB = 1 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    source = (ROOT / "tests" / "replicas" / "dcmi_replica.c").read_text()
    return compiled(source, tmp_path_factory.mktemp("dcmi"))


def compiled(source: str, folder: Path) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is here")
    path = str(folder / "libdcmi.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-o", path, "-"], input=source, text=True, check=True)
    return path


def opened(library: str, visible: str | None = None, **arguments: Any) -> DcmiSensor:
    environment = {} if visible is None else {"ASCEND_RT_VISIBLE_DEVICES": visible}
    return metrics_parts.opened(DcmiSensor(environment=environment, library=library, **arguments))


def test_dcmi_readings_of_every_chip_are_in_our_units(library: str) -> None:
    sensor = opened(library)
    first, second, third = (device.uuid for device in sensor.devices())
    assert first == "NPU-00000200-00000201-00000202-00000203-00000204"
    assert {device.name for device in sensor.devices()} == {"Ascend910B2"}
    assert {device.memory_capacity_bytes for device in sensor.devices()} == {65536 * MB}
    assert sensor.sample(7.0) == [
        Sample(7.0, first, 2000 * MB, 0.20, 200.0),
        Sample(7.0, second, 5000 * MB, 0.50, 500.0),
        Sample(7.0, third, 5001 * MB, 0.51, 500.5),
    ]


def test_energy_is_integrated_power_with_the_interval_achieved(library: str) -> None:
    sensor = DcmiSensor(environment={}, library=library)
    run = metrics_parts.measure_steps(metrics_parts.HandClock(), sensor, times_s=[3.2], readings=32)
    assert (run.energy_scope, run.device_scope, run.energy_source) == ("npu", "npu", "integrated power")
    assert (run.power_w_sum, run.aec_w, run.energy_j) == pytest.approx((1200.5, 1200.5 / 3, 1200.5 * run.window_s))
    assert 32 <= run.samples["power"] <= 35
    assert run.sample_intervals_s["power"] == pytest.approx(3.2 / run.samples["power"])
    assert "no energy counter" in run.sensors[0].unavailable["energy_j"]


@pytest.mark.parametrize(
    ("visible", "ids"),
    [(None, [0, 1, 2]), ("1", [1]), ("0,2", [0, 2]), ("1, 2", [1]), ("0,9,1", [0]), ("2,-1,0", [2]), ("0x,1", [0])],
)
def test_visible_npus_end_at_the_first_invalid_index(visible: str | None, ids: list[int]) -> None:
    chips = [Chip(5, 1, 2), Chip(2, 0, 0), Chip(5, 0, 1)]
    environment = {} if visible is None else {"ASCEND_RT_VISIBLE_DEVICES": visible}
    assert [chip.logic_id for chip in choose_chips(chips, None, environment)] == ids


def test_invisible_npus_are_refused() -> None:
    chips = [Chip(0, 0, 0), Chip(1, 0, 1)]
    assert choose_chips(chips, [1], {}) == [Chip(1, 0, 1)]
    for visible in ("", "-1", "7", ",0"):
        with pytest.raises(MetricsError, match="no NPU is visible"):
            choose_chips(chips, None, {"ASCEND_RT_VISIBLE_DEVICES": visible})
    with pytest.raises(MetricsError, match="device 1 is not among the 1 visible"):
        choose_chips(chips, [1], {"ASCEND_RT_VISIBLE_DEVICES": "1"})


def test_a_quantity_that_the_driver_refuses_has_a_reason_and_others_are_read(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "dcmi_get_device_power_info dcmi_get_device_die_v2 dcmi_get_device_chip_info_v2"
    monkeypatch.setenv("DCMI_LACKS", refused)  # which C's getenv sees, too
    sensor = opened(library)
    sample = sensor.sample(0.0)[0]
    assert "dcmi_get_device_power_info failed with code -8255" in sensor.unavailable["power_w"]
    assert (sample.power_w, sample.utilization) == (None, 0.2)
    assert sample.device == f"NPU-{machine_uuid()}-2-0"  # a place in this machine where no die's number can be had


def test_implausible_readings_are_skipped_until_plausible_ones_follow(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCMI_RUBBISH", "1")
    sensor = opened(library)
    sample = sensor.sample(0.0)[0]
    assert (sample.power_w, sample.utilization, sample.memory_used_bytes) == (None, None, 2000 * MB)
    assert "cannot be: 4.29497e+09 (at most 100)" in sensor.unavailable["utilization"]
    assert "cannot be: -0.1" in sensor.unavailable["power_w"]
    monkeypatch.delenv("DCMI_RUBBISH")
    assert sensor.sample(1.0)[0].power_w == 200.0
    assert {"utilization", "power_w"}.isdisjoint(sensor.unavailable)


def test_the_two_dies_of_an_a3_share_their_cards_power(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCMI_NAME", "Ascend910")
    sensor = opened(library)
    assert {device.name for device in sensor.devices()} == {"Ascend910"}
    # Card 5 says 500 W; what its second die answers is not shown by the driver's own tool either.
    assert [sample.power_w for sample in sensor.sample(0.0)] == [200.0, 250.0, 250.0]
    alone = opened(library, visible="2")
    assert alone.sample(0.0)[0].power_w is None
    assert "card 5 gives one power for its 2 NPUs, of which this measurement has 1" in alone.unavailable["power_w"]


def test_a_die_outside_the_container_is_no_npu(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCMI_NAME", "Ascend910")
    monkeypatch.setenv("DCMI_ONE_DIE", "1")
    sensor = opened(library, indices=[1])
    (sample,) = sensor.sample(0.0)
    assert sample.memory_used_bytes == 5000 * MB  # of the second NPU, in the order of logical ids
    assert sample.power_w is None
    assert "card 5 gives one power for its 2 NPUs, of which this measurement has 1" in sensor.unavailable["power_w"]
    assert len(opened(library).devices()) == 2


def test_a_310p_is_read_through_its_cards_controller(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCMI_NAME", "310P3")
    monkeypatch.setenv("DCMI_LACKS", "dcmi_get_device_power_info dcmi_get_device_hbm_info")
    monkeypatch.setenv("DCMI_CARD_POWER", "428")
    sensor = opened(library, visible="1,2")
    first, second = sensor.sample(0.0)
    assert (first.power_w, second.power_w) == (21.4, 21.4)
    assert (first.memory_used_bytes, second.memory_used_bytes) == (5000 * MB, 5001 * MB)
    assert sensor.devices()[0].memory_capacity_bytes == 44280 * MB
    monkeypatch.setenv("DCMI_CARD_POWER", str(0x7FFD))  # "invalid"
    assert sensor.sample(1.0)[0].power_w is None


def test_limits_and_temperature_of_each_npu_are_read(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = opened(library)
    first, _, third = (device.uuid for device in sensor.devices())
    settings, states = sensor.settings(), sensor.states()
    assert settings[first] == DeviceSettings(clock_max_mhz=1850.0, ecc=True)
    assert settings[third].ecc is False
    assert (states[first], states[third]) == (DeviceState(42.0, 1780.0, ()), DeviceState(46.0, 1749.0, ()))
    monkeypatch.setenv("DCMI_RUBBISH", "1")
    assert sensor.states() == {}
    monkeypatch.delenv("DCMI_RUBBISH")
    monkeypatch.setenv("DCMI_LACKS", "dcmi_get_device_frequency")
    assert (sensor.settings()[first], sensor.states()) == (DeviceSettings(ecc=True), {})
    monkeypatch.setenv("DCMI_LACKS", "dcmi_get_device_frequency dcmi_get_device_ecc_info")
    assert sensor.settings() == {}


def test_another_process_on_an_npu_is_a_disturbance(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCMI_PIDS", "4194305,4194306")
    sensor = opened(library, pids=[4194305])
    assert {found.description for found in sensor.other_use().values()} == {"on the device too: process 4194306"}
    assert len(sensor.other_use()) == 3
    assert opened(library, pids=[7]).other_use() == {}


def test_a_missing_dcmi_library_or_driver_is_reported_with_a_remedy(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libdcmi.so").write_text("no library")
    for name, problem in (("none.so", "not found"), ("libdcmi.so", ".*libdcmi.so: file too short")):
        with pytest.raises(MetricsError, match=f"cannot be loaded .{problem}.: .*mount the host's /usr/local/dcmi"):
            DcmiSensor(library=str(tmp_path / name)).open()
    monkeypatch.setattr(dcmi_library, "LIBRARIES", (str(tmp_path / "none.so"), library))
    DcmiSensor(environment={}).open()
    monkeypatch.setenv("DCMI_LACKS", "dcmi_init")
    with pytest.raises(MetricsError, match="dcmi_init failed with code -8255"):
        opened(library)


def test_a_driver_of_an_unknown_generation_is_reported(tmp_path: Path) -> None:
    library = compiled("int dcmiv2_init(void) { return 0; }", tmp_path)
    with pytest.raises(MetricsError, match="has no dcmi_init: its NPUs are of an unknown generation"):
        opened(library)
