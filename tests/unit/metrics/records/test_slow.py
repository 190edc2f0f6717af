"""Devices and links that are slower than the others: named where they are, and not where all are equal."""

from __future__ import annotations

import numpy as np
import pytest

from efficientbench.metrics.records.outliers import find_slow, rounds_to_compare


def equal(count: int, seed: int, noise: float = 0.3) -> dict[str, list[float]]:
    """Times of equal devices, each round's with a noise of its own."""
    times = np.random.default_rng(seed).lognormal(0.0, noise, (count, rounds_to_compare(count)))
    return {f"device {number}": list(each) for number, each in enumerate(times)}


@pytest.mark.parametrize("count", [2, 3, 16])
def test_equal_devices_are_hardly_ever_named(count: int) -> None:
    # Noise that would shift a median by LEAST_SLOWNESS often: the sign test alone holds the rate at one in a thousand.
    named = sum(bool(find_slow(equal(count, seed))) for seed in range(1000))
    assert named <= 5


@pytest.mark.parametrize("count", [2, 4, 16])
def test_a_slow_device_is_named_with_its_factor(count: int) -> None:
    for seed in range(20):
        times = equal(count, seed, noise=0.05)
        times["device 1"] = [2 * each for each in times["device 1"]]
        (name, factor), *others = find_slow(times).items()
        assert (name, others) == ("device 1", [])
        assert factor == pytest.approx(2, rel=0.2)


def test_several_slow_ones_are_named_the_slowest_first() -> None:
    times = equal(16, 0, noise=0.02)
    for name, factor in (("device 3", 2.0), ("device 7", 3.0)):
        times[name] = [factor * each for each in times[name]]
    assert list(find_slow(times)) == ["device 7", "device 3"]


def test_a_little_slower_or_now_and_then_slower_is_not_slow() -> None:
    times = equal(8, 0, noise=0.02)
    times["device 1"] = [1.15 * each for each in times["device 1"]]
    times["device 2"] = [each * (0.5 if number % 4 == 0 else 3) for number, each in enumerate(times["device 2"])]
    assert find_slow(times) == {}


def test_a_slow_device_is_named_though_others_were_disturbed_for_a_moment() -> None:
    times = equal(2, 0, noise=0.05)
    times["device 1"] = [2 * each for each in times["device 1"]]
    times["device 0"][3:5] = [3 * each for each in times["device 0"][3:5]]
    assert list(find_slow(times)) == ["device 1"]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 16, 17])
def test_the_slow_ones_are_those_of_the_definition_one_by_one(count: int) -> None:
    for seed in range(20):
        times = equal(count, seed, noise=0.1)
        for number in range(0, count, 3):
            times[f"device {number}"] = [(1 + number / 4) * each for each in times[f"device {number}"]]
        found = find_slow(times)
        for name, own in times.items():
            others = np.array([each for other, each in times.items() if other != name])
            ratios, usual = own / np.median(others, axis=0), np.median(others, axis=1)
            sigma = 1.4826 * np.median(np.abs(usual / np.median(usual) - 1))
            slow = sum(ratios > 1) >= len(own) - 2 and np.median(ratios) > 1 + max(0.2, 6 * sigma)
            assert (name in found) == slow
            assert not slow or found[name] == pytest.approx(np.median(ratios))


def test_one_device_has_no_others() -> None:
    assert find_slow({"device 0": [1.0] * 19}) == {}


def test_rounds_grow_with_the_number_of_devices() -> None:
    assert [rounds_to_compare(count) for count in (1, 2, 16, 1024)] == [19, 19, 22, 29]
