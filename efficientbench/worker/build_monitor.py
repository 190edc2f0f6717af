"""Build the monitor of one rank: the sensors that fit its devices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from efficientbench.devices.base import Device
from efficientbench.metrics import AllocatorSensor, EfficiencyMonitor
from efficientbench.metrics.monitoring.sensor_registry import device_sensors
from efficientbench.metrics.sensors.base import Sensor
from efficientbench.metrics.sensors.host import host_uuid
from efficientbench.running.job import Job

if TYPE_CHECKING:
    from efficientbench.training.waits import Waits

IDLE_S = 2.0
"""Seconds that a run waits before it builds its model, to measure the idle power, where a sensor reads power."""


def build_monitor(
    job: Job, device: Device, rank: int, local_rank: int, waits: Waits | None, steps_before: int = 0
) -> EfficiencyMonitor:
    """Return this rank's monitor; all ranks must call this together.

    A node's first rank reads all devices of the node.

    Args:
        job: the run's job.
        device: the device type that the ranks train on.
        rank: the rank of this process in the run.
        local_rank: the rank of this process on its node.
        waits: this rank's waits for other ranks; None: they are not measured.
        steps_before: steps that earlier attempts of the run have trained.
    """
    import torch.distributed as dist

    from efficientbench.metrics.monitoring.exchange import gather

    # By host and not by node: two nodes of a run may share a host, whose power must be counted once.
    places = gather((host_uuid(), os.getpid(), os.getppid()), tuple[str, int, int])
    pids_here = [pid for host, pid, _ in places if host == host_uuid()]
    measurement = job.config.measurement
    sensors: list[Sensor] = []
    # Rollouts, whose `waits` are None, have a monitor of their own.
    reads_meters = measurement.enabled and waits is not None and os.getpid() == pids_here[0]
    if measurement.enabled:
        # A host's first process reads the host; a node's first rank reads the node's devices.
        is_host = device.memory_capacity_bytes() is None
        reads_devices = os.getpid() == pids_here[0] if is_host else local_rank == 0
        if reads_devices:
            # On an accelerator the launcher counts, too: asking the driver for devices may leave it a context.
            launchers = [] if is_host else sorted({parent for host, _, parent in places if host == host_uuid()})
            sensors += device_sensors(device.type, range(job.layout.ranks_per_node), [*pids_here, *launchers])
        allocator = device.allocator()
        if allocator is not None:
            sensors.append(AllocatorSensor(allocator, local_rank, device.names()[local_rank]))
    return EfficiencyMonitor(
        sensors,
        device.synchronize,
        dist.barrier,
        warmup_steps=job.budget.warmup_steps,
        meters=measurement.meters or () if reads_meters else (),
        sample_interval_s=measurement.sample_interval_s,
        rank=rank,
        steps_before=steps_before,
        waited=waits.take if waits is not None and job.layout.world_size > 1 else None,
        # The rollouts' monitor starts once the model is built.
        idle_s=IDLE_S if waits is not None else 0.0,
    )
