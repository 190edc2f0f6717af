"""Merging ranks: each device once, whatever the mapping; steps by their slowest rank; nothing summed in part."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficientbench.metrics import MetricsError, merge
from efficientbench.metrics.formulas.device_use import RankUse
from efficientbench.metrics.monitoring.measurement import DeviceMeasurement, RankMeasurement, SensorState, StepTime
from efficientbench.metrics.sensors.base import DeviceInfo, Scope

GB = 10**9


def device(number: int, scope: Scope = "gpu", samples: int = 10, **changes: object) -> DeviceMeasurement:
    """A device whose figures follow from its number."""
    values: dict = {
        "info": DeviceInfo(f"{scope.upper()}-{number}", f"Device {number}", 100 * GB, "driver"),
        "scope": scope,
        "memory_idle_gb": 1.0,
        "amu_gb": 10.0 + number,
        "pcu": 0.5,
        "aec_w": 100.0 * (number + 1),
        "energy_j": 1000.0 * (number + 1),
        "energy_source": "counter",
        "peak_memory_device_bytes": (20 + number) * GB,
        "peak_memory_allocated_bytes": None,
        "peak_memory_reserved_bytes": None,
        "samples": {"memory": samples, "power": samples // 2},
        "sample_intervals_s": {"memory": 0.1 + number, "power": 0.2},
        "unavailable": {},
    }
    return DeviceMeasurement(**{**values, **changes})


def rank(
    number: int,
    devices: list[DeviceMeasurement],
    times_s: tuple[float, ...] = (0.5, 0.5),
    tokens: int = 100,
    failure: str | None = None,
    scope: Scope = "gpu",
) -> RankMeasurement:
    steps = tuple(StepTime(i + 3, time_s, tokens) for i, time_s in enumerate(times_s))
    return RankMeasurement(number, ((0.0, 10.0),), steps, tuple(devices), (SensorState("nvml", scope, failure),))


def test_steps_take_the_slowest_ranks_time_and_tokens_add_up() -> None:
    run = merge([rank(0, [device(0)], (0.5, 0.9), 100), rank(1, [device(1)], (0.7, 0.6), 28)])
    assert (run.step_times_s, run.tokens) == ((0.7, 0.9), 256)


@given(st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=8))
def test_a_device_that_several_ranks_read_counts_once(seen: list[set[int]]) -> None:
    run = merge([rank(i, [device(number) for number in sorted(numbers)]) for i, numbers in enumerate(seen)])
    physical = sorted(set().union(*seen))
    power_w, largest = sum(100 * (number + 1) for number in physical), physical[-1]
    assert run.device_names == tuple(f"Device {number}" for number in physical)
    assert (run.energy_j, run.power_w_sum, run.aec_w) == pytest.approx((10 * power_w, power_w, power_w / len(physical)))
    assert (run.amu_gb, run.amu_gb_max) == pytest.approx((10 + sum(physical) / len(physical), 10 + largest))
    peaks = run.amu_fraction_max, run.peak_memory_device_bytes
    assert peaks == pytest.approx(((10 + largest) / 100, (20 + largest) * GB))


def test_a_device_takes_the_reading_with_the_fewest_gaps() -> None:
    gaps = {"energy_j": "GPU is lost", "aec_w": "GPU is lost"}
    broken = device(0, energy_j=None, aec_w=None, samples=99, unavailable=gaps)
    for ranks in ([rank(0, [broken]), rank(1, [device(0)])], [rank(0, [device(0)]), rank(1, [broken])]):
        assert merge(ranks).energy_j == 1000


def test_a_sum_over_devices_is_absent_where_one_device_lacks_the_figure() -> None:
    broken = device(1, energy_j=None, aec_w=None, unavailable={"energy_j": "not supported", "aec_w": "not supported"})
    run = merge([rank(0, [device(0)]), rank(1, [broken])])
    assert (run.energy_j, run.aec_w, run.power_w_sum, run.amu_gb) == (None, None, None, pytest.approx(10.5))
    assert run.unavailable["energy_j"] == run.unavailable["power_w_sum"] == "GPU-1: not supported"
    found_nothing = merge([rank(0, [device(0)]), rank(1, [], failure="nvml: no driver")])
    assert (found_nothing.energy_j, found_nothing.unavailable["energy_j"]) == (None, "rank 1: nvml: no driver")


def test_a_rank_without_a_sensor_does_not_void_the_sum() -> None:
    silent = replace(rank(1, []), sensors=())
    assert merge([rank(0, [device(0)]), silent]).energy_j == 1000


def test_figures_of_the_host_never_replace_those_of_an_accelerator() -> None:
    host = device(0, "host")
    both = rank(0, [host], failure="nvml: no driver")
    run = merge([replace(both, sensors=(*both.sensors, SensorState("host", "host", None)))])
    assert (run.device_scope, run.amu_gb, run.unavailable["amu_gb"]) == ("gpu", None, "nvml: no driver")
    assert merge([rank(0, [host], scope="host")]).amu_gb == 10


def test_figures_of_the_host_are_not_mixed_into_those_of_a_gpu() -> None:
    run = merge([rank(0, [device(3), device(0, "host")])])
    assert (run.amu_gb, run.power_w_sum, run.device_names) == (13, 400, ("Device 3",))


def test_allocators_count_per_rank_not_per_device() -> None:
    peaks = [
        {"peak_memory_allocated_bytes": (5 + i) * GB, "peak_memory_reserved_bytes": (9 - i) * GB} for i in range(2)
    ]
    allocators = [device(i, "allocator", amu_gb=4.0 + i, **peaks[i]) for i in range(2)]
    sensors = SensorState("nvml", "gpu", None), SensorState("allocator", "allocator", None)
    run = merge([replace(rank(i, [device(0), each]), sensors=sensors) for i, each in enumerate(allocators)])
    assert (run.peak_memory_allocated_bytes, run.peak_memory_reserved_bytes) == (6 * GB, 9 * GB)
    assert (run.memory_allocated_mean_gb, run.energy_j) == pytest.approx((4.5, 1000))


def test_each_rank_gets_its_own_accelerators_figures_even_if_another_rank_read_them() -> None:
    allocator = device(7, "allocator")
    reader = rank(0, [allocator, device(0), device(1)], (0.5, 0.75))
    silent = replace(rank(1, [], (0.75, 0.25)), sensors=())
    other = rank(2, [device(2, energy_j=None, unavailable={"energy_j": "not supported"})], (0.25, 0.25))
    assert merge([reader, silent, other]).rank_uses == (
        RankUse(0, 0.625, 10.0, 20.0, 0.5, 1000.0),
        RankUse(1, 0.5, 11.0, 21.0, 0.5, 2000.0),
        RankUse(2, 0.25, 12.0, 22.0, 0.5, None),
    )


def test_ranks_of_a_shared_host_or_a_lone_rank_have_no_figures_per_rank() -> None:
    uses = merge([rank(number, [device(0, "host")], scope="host") for number in range(2)]).rank_uses
    assert [(each.rank, each.amu_gb, each.energy_j) for each in uses] == [(0, None, None), (1, None, None)]
    assert merge([rank(0, [device(0)])]).rank_uses == ()
    assert merge([rank(number, [device(number)], ()) for number in range(2)]).rank_uses == ()


def test_ranks_that_measured_different_processes_of_a_host_are_refused() -> None:
    def host_of(*pids: int) -> DeviceMeasurement:
        return device(0, "host", info=DeviceInfo("HOST-0", "CPU", 100 * GB, "pss", pids))

    assert merge([rank(i, [host_of(7, 8)], scope="host") for i in range(2)]).amu_gb == 10
    with pytest.raises(MetricsError, match="different processes of HOST-0"):
        merge([rank(0, [host_of(7)], scope="host"), rank(1, [host_of(8)], scope="host")])


def test_ranks_that_measured_different_steps_are_refused() -> None:
    with pytest.raises(MetricsError, match="rank 0 measured 2 steps and rank 1 1"):
        merge([rank(0, [device(0)]), rank(1, [device(1)], (0.5,))])
    with pytest.raises(MetricsError, match="no rank's measurement"):
        merge([])


def test_an_unknown_memory_capacity_leaves_the_fraction_absent() -> None:
    run = merge([rank(0, [device(0, info=DeviceInfo("GPU-0", "x", None, "driver"))])])
    assert (run.amu_gb, run.amu_fraction) == (10, None)
    assert "capacity" in run.unavailable["amu_fraction"]


def test_a_measurement_can_be_pickled() -> None:
    one = rank(0, [device(0)])
    assert pickle.loads(pickle.dumps(one)) == one
