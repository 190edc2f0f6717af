"""The allocator sensor on an object with the memory functions that torch's device modules have; no accelerator here."""

from __future__ import annotations

import pytest
from support.metrics_parts import GB, measure_step

from efficientbench.metrics import AllocatorSensor, EfficiencyMonitor, HostSensor, merge


class Memory:
    """Counts what it is told, as `torch.cuda.memory_allocated` and its neighbours do for each device."""

    def __init__(self) -> None:
        self.allocated = [0, 0]
        self.peak = [0, 0]
        self.reserved = [0, 0]

    def allocate(self, device: int, size: int) -> None:
        self.allocated[device] += size
        self.peak[device] = max(self.peak[device], self.allocated[device])
        self.reserved[device] = max(self.reserved[device], 2 * self.allocated[device])

    def memory_allocated(self, device: int) -> int:
        return self.allocated[device]

    def max_memory_allocated(self, device: int) -> int:
        return self.peak[device]

    def max_memory_reserved(self, device: int) -> int:
        return self.reserved[device]

    def reset_peak_memory_stats(self, device: int) -> None:
        self.peak[device] = self.allocated[device]
        self.reserved[device] = 2 * self.allocated[device]


def test_allocator_peaks_cover_the_window_and_the_ranks_device() -> None:
    memory = Memory()
    memory.allocate(0, 50 * GB)  # another process's business
    sensor = AllocatorSensor(memory, 1, "Trace 9000")
    with EfficiencyMonitor([sensor], warmup_steps=1, sample_interval_s=1e6) as monitor:
        for phase, allocated_gb, kept_gb in (
            (monitor.step(tokens=1), 30, 4),
            (monitor.step(tokens=1), 6, 0),  # freed between two samples
            (monitor.paused(), 20, 0),
            (monitor.step(tokens=1), 5, 0),
        ):
            with phase:
                memory.allocate(1, allocated_gb * GB)
                memory.allocate(1, (kept_gb - allocated_gb) * GB)
    run = merge([monitor.finish()])
    assert (run.peak_memory_allocated_bytes, run.peak_memory_reserved_bytes) == (10 * GB, 20 * GB)
    assert run.memory_allocated_mean_gb == pytest.approx(4)


def test_a_lone_allocator_is_no_device() -> None:
    memory = Memory()
    run = measure_step(AllocatorSensor(memory, 0, "x"), work=lambda: memory.allocate(0, GB))
    assert (run.peak_memory_allocated_bytes, run.amu_gb, run.device_scope, run.device_names) == (GB, None, None, ())
    assert run.unavailable["amu_gb"] == "no sensor for it was in use"


def test_an_allocator_does_not_change_the_hosts_memory_figures() -> None:
    memory = Memory()
    sensors = HostSensor(), AllocatorSensor(memory, 0, "x")
    run = measure_step(*sensors, work=lambda: memory.allocate(0, 500 * GB))
    assert 0 < run.amu_gb < 100
    assert run.peak_memory_allocated_bytes == 500 * GB
