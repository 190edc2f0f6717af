"""The RAPL sensor on made-up powercap trees: what is counted, wrap-around, and who may read it."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from support.metrics_parts import GB, HandClock, TraceSensor, measure_steps, monitor_of, opened

from efficientbench.metrics import MetricsError, RaplSensor, merge
from efficientbench.metrics.monitoring.measurement import RankMeasurement, RunMeasurement

RANGE_UJ = 262_143_328_850
"""Of a Xeon: 2^32 - 1 units of 2^-14 J."""


def make(root: Path, zones: dict[str, tuple[str, int]]) -> Path:
    """Zones as the kernel lays them out: folder → name and counter in microjoules."""
    for folder, (name, energy_uj) in zones.items():
        (root / folder).mkdir(parents=True)
        (root / folder / "name").write_text(f"{name}\n")
        (root / folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
        (root / folder / "energy_uj").write_text(f"{energy_uj}\n")
    return root


TWO_SOCKETS = {
    "intel-rapl:0": ("package-0", 1_000),
    "intel-rapl:0:0": ("core", 500),
    "intel-rapl:0:1": ("dram", 100),
    "intel-rapl:1": ("package-1", RANGE_UJ - 2_000_000),
    "intel-rapl:1:0": ("dram", 200),
    "intel-rapl:2": ("psys", 9),
    "intel-rapl-mmio:0": ("package-0", 1_000),
}


def spend(root: Path, folder: str, joules: float) -> None:
    file = root / folder / "energy_uj"
    file.write_text(str((int(file.read_text()) + round(joules * 1e6)) % RANGE_UJ))


def test_packages_and_dram_count_once_and_nested_zones_do_not(tmp_path: Path) -> None:
    root, clock = make(tmp_path, TWO_SOCKETS), HandClock(0)
    monitor = monitor_of(clock, TraceSensor(clock, ("HOST",), lambda t: GB, scope="host"), RaplSensor(root))
    with monitor, monitor.step(tokens=100):
        clock.pass_time(10)
        # Package 1 wraps around on the way; core is part of package 0, psys and mmio show the same again.
        for folder, joules in (
            ("intel-rapl:0", 300),
            ("intel-rapl:0:0", 200),
            ("intel-rapl:0:1", 20),
            ("intel-rapl:1", 400),
            ("intel-rapl:1:0", 30),
            ("intel-rapl:2", 900),
            ("intel-rapl-mmio:0", 300),
        ):
            spend(root, folder, joules)
    run = merge([monitor.finish()])
    assert run.energy_j == pytest.approx(750, rel=1e-6)
    assert run.aec_w == run.power_w_sum == pytest.approx(75, rel=1e-6)
    assert (run.device_scope, run.energy_scope, run.energy_source) == ("host", "cpu-package+dram", "counter")
    assert run.device_names == ("Trace 9000",)  # the meter is no second host
    assert run.timelines[-1].device_name == "package-0 + package-1 + dram + dram"


def test_many_wrap_arounds_in_one_window_are_counted_from_samples(tmp_path: Path) -> None:
    root, clock = make(tmp_path, {"intel-rapl:0": ("package-0", 7)}), HandClock(0)
    sensor = opened(RaplSensor(root))
    for _ in range(10):
        clock.pass_time(3600)
        spend(root, "intel-rapl:0", 250_000)
        (sample,) = sensor.sample(clock())
    assert next(iter(sensor.counters().values())).energy_j == pytest.approx(2_500_000, rel=1e-9)
    assert sample.power_w == pytest.approx(250_000 / 3600, rel=1e-9)


@pytest.mark.parametrize(
    ("without", "scope", "joules"),
    [
        ((), "cpu-package+dram", 4 + 8 + 2 + 16),
        (("intel-rapl:1:0",), "cpu-package", 4 + 8),  # one socket's memory alone stands for nothing
        (("intel-rapl:0:1", "intel-rapl:1:0"), "cpu-package", 4 + 8),
        (("intel-rapl:0", "intel-rapl:1", "intel-rapl-mmio:0"), "node", 32),
    ],
)
def test_the_energy_scope_names_the_counted_zones(
    without: tuple[str, ...], scope: str, joules: int, tmp_path: Path
) -> None:
    root = make(tmp_path, {folder: zone for folder, zone in TWO_SOCKETS.items() if folder not in without})
    sensor = opened(RaplSensor(root))
    spent = {"intel-rapl:0": 4, "intel-rapl:1": 8, "intel-rapl:0:1": 2, "intel-rapl:1:0": 16, "intel-rapl:2": 32}
    for folder, each in spent.items():
        if folder not in without:
            spend(root, folder, each)
    assert sensor.scope == scope
    assert next(iter(sensor.counters().values())).energy_j == pytest.approx(joules)


def test_missing_or_unreadable_zones_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MetricsError, match="no RAPL zone in .*intel_rapl_msr"):
        RaplSensor(tmp_path).open()
    root = make(tmp_path, TWO_SOCKETS)

    def refuse(*_: object) -> int:  # a test may run as root, whom file modes do not stop
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(MetricsError, match="energy_uj may be read by root alone.*chmod a\\+r"):
        RaplSensor(root).open()


def host_and_meter(clock: HandClock, root: Path, host: str, rank: int) -> RankMeasurement:
    monitor = monitor_of(clock, TraceSensor(clock, (host,), lambda t: GB, scope="host"), RaplSensor(root), rank=rank)
    with monitor, monitor.step(tokens=1):
        clock.pass_time(1)
        if root.exists():
            spend(root, "intel-rapl:0", 5)
    return monitor.finish()


def test_hosts_with_differing_or_failed_zones_have_no_sum(tmp_path: Path) -> None:
    clock = HandClock(0)

    def merged(second: Path) -> RunMeasurement:
        first = make(tmp_path / f"{second.name}-first", {"intel-rapl:0": ("package-0", 0)})
        return merge([host_and_meter(clock, first, "A", 0), host_and_meter(clock, second, "B", 1)])

    with_memory = {"intel-rapl:0": ("package-0", 0), "intel-rapl:0:0": ("dram", 0)}
    run = merged(make(tmp_path / "memory", with_memory))
    assert run.unavailable["energy_j"] == "the hosts' meters count different things: cpu-package, cpu-package+dram"
    run = merged(tmp_path / "nothing")
    assert (run.energy_j, run.energy_scope) == (None, None)
    assert run.unavailable["power_w_sum"].startswith("rank 1: rapl: no RAPL zone")
    assert run.amu_gb == pytest.approx(1)


def test_a_frozen_counter_is_not_zero_joules(tmp_path: Path) -> None:
    clock = HandClock(0)
    host = TraceSensor(clock, ("A",), lambda t: GB, scope="host")
    meter = RaplSensor(make(tmp_path, {"intel-rapl:0": ("package-0", 7)}))
    run = measure_steps(clock, host, meter, times_s=[5])
    assert (run.energy_j, run.aec_w) == (None, None)
    assert "stood still" in run.unavailable["energy_j"]


def test_two_containers_of_one_machine_count_its_energy_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path, TWO_SOCKETS)
    uuids = set()
    for host in ("pod-0", "pod-1"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        with closing(opened(RaplSensor(root))) as sensor:
            uuids.add(sensor.devices()[0].uuid)
    assert len(uuids) == 1


def test_a_zone_that_cannot_be_opened_leaves_no_file_open(tmp_path: Path) -> None:
    sensor = RaplSensor(make(tmp_path, TWO_SOCKETS))
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("?")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(MetricsError, match="gives no energy"):
        sensor.open()
    sensor.close()
    assert len(os.listdir("/proc/self/fd")) == before
