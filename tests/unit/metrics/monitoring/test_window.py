"""A named window: what three lines measure of one piece of work."""

from __future__ import annotations

import time

import pytest
from support.metrics_parts import TraceSensor

from efficientbench.metrics import HostSensor, MetricsError, measure


def test_a_window_has_time_energy_and_summary_of_its_block() -> None:
    # A counter of 200 W on the real clock.
    sensor = TraceSensor(time.monotonic, memory=lambda _: 2e9, power=lambda _: 200.0, energy=lambda t: 200.0 * t)
    begin_s = time.monotonic()
    with measure("prefill", [sensor]) as prefill:
        time.sleep(0.05)
    assert prefill.energy_j is not None
    assert 0.05 <= prefill.time_s <= prefill.run.window_s
    assert 200 * 0.05 <= prefill.energy_j <= 200 * (time.monotonic() - begin_s)
    lines = dict(line.split(maxsplit=1) for line in prefill.summary.splitlines())
    assert (lines["window"], lines["time"]) == ("prefill", f"{prefill.time_s:,.4g} s")
    assert lines["energy"].startswith(f"{prefill.energy_j:,.1f} J at ")


def test_windows_overlap_and_an_absent_energy_has_its_reason() -> None:
    with measure("outer", [HostSensor()]) as outer:
        with measure("inner", [HostSensor()]) as inner:
            time.sleep(0.01)
        with pytest.raises(MetricsError, match="the window 'outer' is measured once its block has ended"):
            _ = outer.time_s
    assert outer.time_s > inner.time_s >= 0.01
    assert inner.energy_j is None
    assert inner.run.unavailable["energy_j"] in inner.summary


def test_a_block_that_raises_has_no_result() -> None:
    with pytest.raises(KeyError), measure("broken", []) as broken:
        raise KeyError
    with pytest.raises(MetricsError, match="once its block has ended"):
        _ = broken.summary
