"""Meters from outside: beside the devices' own, counted once, in records and reports, and harmless where they fail."""

from __future__ import annotations

import math
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support import outside
from support.metrics_parts import make_record

from efficientbench.basics.errors import ConfigError
from efficientbench.cli.listing import list_runs
from efficientbench.config.load import resolve
from efficientbench.metrics import EfficiencyMonitor, merge
from efficientbench.metrics.analysis.repeats import combine, group_repeats
from efficientbench.metrics.formulas.device_use import MeterUse
from efficientbench.metrics.monitoring import sampler
from efficientbench.metrics.monitoring.measurement import RankMeasurement, RunMeasurement
from efficientbench.metrics.monitoring.meters import ENTRY_POINTS, find_meter
from efficientbench.metrics.records.record import read_record
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.sensors.base import Counters, DeviceInfo, Meter, Sample

NAME = "my_meter:Outlet"
USE = MeterUse("outlet 7", NAME, "OUTLET-7", 100.0, "counter", 50.0, None)


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    outside.lay_out(folder, monkeypatch)
    return folder


def loop(*sensors: Meter, **keywords: object) -> EfficiencyMonitor:
    """A monitor that has measured 0.1 s by these sensors."""
    monitor = EfficiencyMonitor(sensors, sample_interval_s=0.01, **keywords)  # type: ignore[arg-type]
    with monitor:
        for _ in range(3):
            with monitor.step(tokens=10):
                time.sleep(0.03)
    return monitor


def measured(*sensors: Meter, **keywords: object) -> RunMeasurement:
    return merge([loop(*sensors, **keywords).finish()])


def test_a_loop_takes_a_meter_by_its_name_and_reports_it_with_its_source(tmp_path: Path) -> None:
    monitor = loop(meters=[NAME])
    run = merge([monitor.finish()])
    assert [(use.name, use.source, use.device, use.energy_source) for use in run.meters] == [
        ("outlet 7", NAME, "OUTLET-7", "counter")
    ]
    assert run.meters[0].power_w == pytest.approx((run.meters[0].energy_j or 0.0) / run.window_s)
    assert re.search(r"^meter +outlet 7 \(my_meter:Outlet\) counted [\d.]+ J at [\d.]+ W$", monitor.summary(), re.M)
    # Nothing of it is in the figures of the devices.
    assert (run.energy_j, run.device_scope, run.timelines) == (None, None, ())
    folder = tmp_path / "own" / "mine"
    monitor.save(folder, seq_len=10, micro_batch_size=1, dtype="fp32")
    record = read_record(folder / "record.json")
    assert tuple(record.meters) == run.meters
    assert [each["source"] for each in record.environment["sensors"]] == [NAME]
    report = build_report(folder.parent)
    row = f"| mine | outlet 7 | {NAME} | {run.meters[0].energy_j:,.1f} |"
    assert row in (folder.parent / "report.md").read_text()
    assert NAME in (folder.parent / "report.html").read_text()
    assert not report.warnings


def test_one_meter_that_several_ranks_read_counts_once() -> None:
    one = loop(meters=[NAME]).finish()
    several: list[RankMeasurement] = [replace(one, rank=rank) for rank in range(3)]
    run = merge(several)
    assert run.meters == merge([one]).meters
    assert len(run.meters) == 1


class Impostor(Meter):
    """Calls itself by a device's uuid, and says what it is told to."""

    def __init__(self, power_w: float = 7.0, uuid: object = "GPU-0", energy_j: float | None = None) -> None:
        self.power_w, self.uuid, self.energy_j = power_w, uuid, energy_j

    def open(self) -> None:
        return

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(self.uuid, "an impostor", None, "none")]  # type: ignore[arg-type]

    def sample(self, time_s: float) -> list[Sample]:
        return [Sample(time_s, "GPU-0", power_w=self.power_w)]

    def counters(self) -> dict[str, Counters]:
        return {} if self.energy_j is None else {"GPU-0": Counters(energy_j=self.energy_j)}


def test_a_meter_with_the_uuid_of_a_device_replaces_nothing() -> None:
    both = loop(Impostor()).finish()
    device = replace(both.devices[0], scope="gpu", energy_j=900.0, aec_w=300.0, unavailable={})
    state = replace(both.sensors[0], scope="gpu", source="")
    run = merge([replace(both, devices=(device, *both.devices), sensors=(state, *both.sensors))])
    assert (run.energy_j, run.energy_scope, run.device_names) == (900.0, "gpu", ("an impostor",))
    assert [use.device for use in run.meters] == ["GPU-0"]


@pytest.mark.parametrize(
    ("meter", "why"),
    [
        (Impostor(math.nan), "which is no sample (it is not finite)"),
        (Impostor(uuid=7), "which is no device"),
        (Impostor(energy_j=math.inf), "which is not finite"),
        (Impostor(uuid="GPU-1"), "sampled GPU-0, which it had not named"),
    ],
    ids=["power", "uuid", "energy", "name"],
)
def test_a_meter_with_nonsense_readings_ends_only_its_own_series(meter: Impostor, why: str) -> None:
    run = measured(meter)
    assert len(run.step_times_s) == 3
    (use,) = run.meters
    assert use.energy_j is None
    assert why in str(use)
    assert "Impostor) has no energy: meter: " in str(use)


class Hanging(Impostor):
    """Answers no more from its second counter on."""

    def counters(self) -> dict[str, Counters]:
        if self.energy_j is not None:
            threading.Event().wait()
        self.energy_j = 1.0
        return {"GPU-0": Counters(energy_j=self.energy_j)}


def test_a_hung_meter_does_not_delay_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "PATIENCE_S", 0.3)
    run = measured(Hanging())
    assert len(run.step_times_s) == 3
    assert "has not answered for 0.3 s" in (run.meters[0].unavailable or "")


def test_a_meter_is_read_before_the_barrier_of_the_first_step() -> None:
    calls: list[str] = []

    class Noting(Impostor):
        def counters(self) -> dict[str, Counters]:
            calls.append("counters")
            return {}

    loop(Noting(), barrier=lambda: calls.append("ranks"))
    assert calls[:2] == ["counters", "ranks"]
    assert calls[-2:] == ["ranks", "counters"]


def test_repeats_average_a_meter_only_where_every_repeat_has_it() -> None:
    def combined(*meters: MeterUse) -> list[MeterUse]:
        named = {"measurement": {"meters": [NAME]}}
        repeats = [make_record({"seed": seed, "meters": [use], "config": named}) for seed, use in enumerate(meters)]
        (group,) = group_repeats(repeats)
        return combine(group).meters

    assert combined(USE, replace(USE, energy_j=300.0, power_w=150.0)) == [replace(USE, energy_j=200.0, power_w=100.0)]
    lost = replace(USE, energy_j=None, power_w=None, energy_source=None, unavailable="meter: gone")
    assert combined(USE, lost) == [lost]


MISTAKES = """
from efficientbench.metrics.sensors.base import Meter
from my_meter import Outlet

class Unfinished(Meter):
    def open(self): ...

class Disguised(Outlet):
    scope = "gpu"

def function():
    return Outlet()

def failing():
    raise OSError("no route to 10.0.0.7")
"""


def test_a_name_that_is_no_meter_is_refused_with_the_reason(package: Path) -> None:
    (package / "my_mistakes.py").write_text(MISTAKES)
    assert find_meter("my_mistakes:function").source == NAME
    for name, told in {
        "outlet": "there is no meter called 'outlet': none is installed; yours is package.module:NAME",
        "my_meter:Outlte": "my_meter has no Outlte; did you mean my_meter:Outlet?",
        "my_meter:POWER_W": "my_meter:POWER_W is of class float, not a class of Meter",
        "my_mistakes:Unfinished": "cannot be made: TypeError: Can't instantiate abstract class Unfinished",
        "my_mistakes:failing": "cannot be made: OSError: no route to 10.0.0.7",
        "my_mistakes:Disguised": "makes a Disguised, not a Meter of efficientbench.metrics.sensors.base",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(told)):
            find_meter(name)


def test_meters_are_refused_in_a_run_without_sensors() -> None:
    with pytest.raises(ConfigError, match="enabled=false reads no sensor, and meters names some"):
        resolve("gqa_1.5B", overrides=[f"measurement.meters={NAME}", "measurement.enabled=false"])


def test_an_installed_meter_is_listed_without_being_imported(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside.install(package, ENTRY_POINTS, "trial_outlet", "my_meter:Outlet")
    outside.install(package, ENTRY_POINTS, "trial_hostile", "hostile:Outlet")
    list_runs(["trial_"])
    printed = capsys.readouterr().out
    assert re.search(r"^trial_outlet +my_meter:Outlet +measurement.meters$", printed, re.MULTILINE), printed
    assert re.search(r"^trial_hostile +hostile:Outlet +measurement.meters$", printed, re.MULTILINE), printed
    assert not (package / "ran").exists()
    assert find_meter("trial_outlet").source == NAME
    with pytest.raises(ConfigError, match="called 'trial_outlt': did you mean trial_outlet"):
        find_meter("trial_outlt")
