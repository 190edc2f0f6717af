"""The conditions of a run: what NVML and Linux tell of them, by rank, and what comparisons and reports make of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from pydantic import TypeAdapter
from replicas.nvml_replica import Driver, Gpu
from support.metrics_parts import HandClock, make_record, monitor_of, opened

from efficientbench.metrics import NvmlSensor, merge
from efficientbench.metrics.analysis.cautions import slowed, straggling
from efficientbench.metrics.analysis.conditions import differences, shared_conditions
from efficientbench.metrics.formulas.device_use import (
    CLOCKS_SET,
    DeviceConditions,
    DeviceSettings,
    MachineConditions,
    RankWaits,
)
from efficientbench.metrics.monitoring.measurement import RankMeasurement
from efficientbench.metrics.monitoring.sampler import OTHER_USE_INTERVAL_S
from efficientbench.metrics.records.record import RunRecord, read_record, write_record
from efficientbench.metrics.records.summarize import measured_parts
from efficientbench.metrics.report.sections.environments import environments
from efficientbench.metrics.sensors.machine import machine_conditions
from efficientbench.metrics.sensors.nvml import _REASONS, read_settings

SETTINGS = DeviceSettings(400.0, 400.0, 1410.0, 1593.0, True, False, "generation 4, 16 lanes", "580.10", 8)


def test_settings_are_converted_to_our_units_and_missing_ones_are_none() -> None:
    driver = Driver(Gpu("GPU-a", limit_mw=300_000), Gpu("GPU-b", lacks=("limits",)))
    limited, silent = opened(NvmlSensor(environment={}, nvml=driver)).settings().values()
    assert limited == replace(SETTINGS, power_limit_w=300.0)
    assert silent == replace(SETTINGS, power_limit_w=None, power_limit_default_w=None, ecc=None)


def test_throttle_bits_match_nvml() -> None:
    names = ("ApplicationsClocksSetting", "SwPowerCap", "HwSlowdown", "SyncBoost", "SwThermalSlowdown")
    names += ("HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert list(_REASONS) == [getattr(pynvml, f"nvmlClocksThrottleReason{name}") for name in names]


def watched(driver: Driver, clock: HandClock, rank: int) -> RankMeasurement:
    """Measure four steps as long as the time between looks; in the last two, heat slows the first device."""
    sensor = NvmlSensor(environment={}, nvml=driver)
    with monitor_of(clock, sensor, rank=rank) as monitor:
        clock.pass_time(1)
        for number in range(4):
            driver.gpus[0].reasons = 0x24 if number > 1 else 0x01
            driver.gpus[0].clock_mhz = 1000 if number > 1 else 1400
            driver.gpus[0].celsius = 60 + number
            with monitor.step(tokens=1):
                clock.pass_time(OTHER_USE_INTERVAL_S)
                for sampler in monitor._samplers:
                    sampler.sample()
    return monitor.finish()


def of_two_nodes() -> list[RankMeasurement]:
    """Two nodes of two GPUs each, whose first ranks read them, as gathered; the second node's limit is lower."""
    nodes = [
        Driver(Gpu("GPU-a"), Gpu("GPU-b")),
        Driver(Gpu("GPU-c", limit_mw=300_000), Gpu("GPU-d", limit_mw=300_000, lacks=("state",))),
    ]
    measured = [watched(driver, HandClock(), rank) for driver, rank in zip(nodes, (0, 2), strict=True)]
    sent = TypeAdapter(list[RankMeasurement])
    return sent.validate_json(sent.dump_json(measured))


def test_device_conditions_in_the_window_are_recorded_by_rank() -> None:
    run = merge(of_two_nodes())
    assert [(each.rank, each.device) for each in run.device_conditions] == [
        *((0, "GPU-a"), (1, "GPU-b"), (2, "GPU-c"), (3, "GPU-d"))
    ]
    hot, calm, _, silent = run.device_conditions
    assert hot.settings == SETTINGS
    assert (hot.temperature_c_max, hot.clock_mhz_mean) == (63, 1200)
    assert hot.slowed_by == {"the power limit": 0.5, "heat (driver)": 0.5}
    assert (calm.slowed_by, silent.temperature_c_max) == ({}, None)
    (machine,) = run.machine_conditions
    assert machine.ranks == [0, 2]


def test_the_record_has_device_conditions_and_reports_show_heat_and_limits(tmp_path: Path) -> None:
    run = merge(of_two_nodes())
    parts = {name: measured_parts(run, [])[name] for name in ("device_conditions", "machine_conditions")}
    record = make_record(parts)
    write_record(record, tmp_path / "record.json")
    assert read_record(tmp_path / "record.json").model_copy(update={"sha256": None}) == record
    assert slowed([record, make_record()]) == [
        "gqa_1.5B was slowed: rank 0 by heat (driver) in 50% of the readings; "
        "rank 2 by heat (driver) in 50% of the readings."
    ]
    ((_, facts),) = environments([record])
    assert facts["limits"] == (
        "limit 400 W, cores 1410 MHz, memory 1593 MHz, ECC on, 8 NVLinks; "
        "limit 300 W, cores 1410 MHz, memory 1593 MHz, ECC on, 8 NVLinks"
    )
    assert facts["PCIe"] == "generation 4, 16 lanes"


def test_the_rank_that_other_ranks_wait_for_is_named() -> None:
    waits = [RankWaits(0, 0.020, None), RankWaits(1, 0.002, None), RankWaits(2, 0.024, None)]
    slow = make_record({"al_s": 0.2, "rank_waits": waits})
    assert straggling([slow]) == [
        "gqa_1.5B: rank 1 waited 1% of a step for the others, and these 11%: it is the slowest."
    ]
    even = make_record({"al_s": 0.2, "rank_waits": [RankWaits(0, 0.020, None), RankWaits(1, 0.015, None)]})
    pipeline = make_record({"al_s": 0.2, "rank_waits": waits, "pp": 3})
    assert straggling([even, pipeline, make_record({"rank_waits": waits}), make_record()]) == []


def of_device(settings: DeviceSettings, clocks: float = 0.0) -> RunRecord:
    fared = {CLOCKS_SET: clocks}
    return make_record({"device_conditions": [DeviceConditions(0, "GPU-a", settings, 60.0, 1400.0, fared)]})


def of_machine(**changes: object) -> RunRecord:
    machine = MachineConditions(ranks=[0], processor="AMD EPYC", cores=2.0, governor="performance", boost=True)
    return make_record({"machine_conditions": [replace(machine, **changes)]})


@pytest.mark.parametrize(
    ("one", "other", "condition"),
    [
        (of_device(SETTINGS), of_device(replace(SETTINGS, power_limit_w=300.0)), "limits"),
        (of_device(SETTINGS), of_device(replace(SETTINGS, ecc=False)), "limits"),
        (of_device(SETTINGS), of_device(SETTINGS, clocks=0.9), "limits"),
        (of_device(SETTINGS), make_record(), "limits"),
        (of_device(SETTINGS), of_device(replace(SETTINGS, driver="570.1")), "software"),
        (of_machine(), of_machine(cores=4.0), "limits"),
        (of_machine(), of_machine(governor="powersave"), "limits"),
        (of_machine(), of_machine(boost=False), "limits"),
        (
            make_record({"environment": {"packages": {"torch": "2.9.0"}}}),
            make_record({"environment": {"packages": {"torch": "2.9.1"}}}),
            "software",
        ),
        (
            make_record({"environment": {"versions": {"NCCL": "2.27"}}}),
            make_record({"environment": {"versions": {"NCCL": "2.28"}}}),
            "software",
        ),
    ],
)
def test_settings_that_change_speed_or_energy_are_conditions(one: RunRecord, other: RunRecord, condition: str) -> None:
    assert {difference.condition for difference in differences(one, other)} >= {condition}
    assert differences(one, one) == []


def test_temperature_clock_rank_and_container_are_no_conditions() -> None:
    one = of_device(SETTINGS)
    (conditions,) = one.device_conditions
    other = {"rank": 3, "device": "GPU-z", "temperature_c_max": 80.0, "clock_mhz_mean": 1300.0}
    assert differences(one, make_record({"device_conditions": [replace(conditions, **other)]})) == []
    assert differences(of_machine(), of_machine(container="docker", network=["Ethernet 10 Gb/s"], ranks=[5])) == []


def test_unrecorded_conditions_are_not_shown() -> None:
    assert {"limits", "software"}.isdisjoint(shared_conditions(make_record()))
    assert shared_conditions(of_machine())["limits"] == "2 cores, governor performance, boost on"


def put(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_machine_conditions_are_read_from_linux(tmp_path: Path) -> None:
    cpu, net, fabric = "sys/devices/system/cpu", "sys/class/net", "sys/class/infiniband/mlx5_0/ports/1"
    files = {
        **{f"{cpu}/cpu{number}/cpufreq/scaling_governor": "powersave" for number in range(2)},
        **{f"{cpu}/cpu{number}/cpufreq/scaling_max_freq": f"{3_000_000 + number}" for number in range(2)},
        **{f"{cpu}/intel_pstate/no_turbo": "1", f"{cpu}/smt/active": "1"},
        "proc/cpuinfo": "processor : 0\nflags : fpu avx512f hypervisor",
        **{f"{fabric}/rate": "400 Gb/sec (4X NDR)", f"{fabric}/link_layer": "InfiniBand"},
        **{f"{net}/eth0/speed": "25000", f"{net}/eth0/device/vendor": "x", f"{net}/eth0/address": "00:11:22:33"},
        **{f"{net}/docker0/speed": "10000", f"{net}/eth1/speed": "-1", f"{net}/eth1/device/vendor": "x"},
        "run/.containerenv": 'engine="podman"\nimage="registry.example.org/team/pytorch:2.9@sha256:00"',
    }
    put(tmp_path, **files)
    found = machine_conditions(3, tmp_path, {})
    assert found == MachineConditions(
        ranks=[3],
        processor=found.processor,
        cores=found.cores,
        governor="powersave",
        clock_max_mhz=3000.001,
        boost=False,
        simultaneous_threads=True,
        is_virtual=True,
        container="podman",
        image="pytorch:2.9",
        network=["Ethernet 25 Gb/s", "InfiniBand 400 Gb/sec (4X NDR)"],
    )


@pytest.mark.parametrize(
    ("files", "environment", "expected"),
    [
        ((), {}, (None, None)),
        ((".dockerenv",), {}, ("docker", None)),
        ((".dockerenv",), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ("kubernetes", None)),
        ((), {"container": "lxc"}, ("lxc", None)),
        ((), {"APPTAINER_CONTAINER": "/home/me/a.sif", "APPTAINER_NAME": "a.sif"}, ("apptainer", "a.sif")),
    ],
)
def test_the_kind_of_container_is_recognised(
    tmp_path: Path, files: tuple[str, ...], environment: dict[str, str], expected: tuple[str | None, str | None]
) -> None:
    put(tmp_path, **dict.fromkeys(files, ""))
    found = machine_conditions(0, tmp_path, environment)
    assert (found.container, found.image) == expected
    assert (found.governor, found.clock_max_mhz, found.boost, found.network) == (None, None, None, [])


def test_a_mig_slice_has_no_power_limit() -> None:
    driver = Driver(Gpu("GPU-a"))
    found = read_settings(driver, Gpu("MIG-p", instance=(1, 0)))
    assert (found.power_limit_w, found.ecc, found.clock_max_mhz) == (None, None, 1410)
