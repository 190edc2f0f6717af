"""The work of the ranks of `calibrate`: rates of devices and links, then the time of the run's own step."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from efficientbench.basics.cgroup import usable_cores
from efficientbench.costs.rank_grid import Group, RankGrid
from efficientbench.devices.loading import absent, loading
from efficientbench.devices.registry import find_device
from efficientbench.planning.calibration import Calibration, Point, write_calibration
from efficientbench.running.calibrate import CalibrationJob
from efficientbench.running.failures import diagnose
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.rank_process import Rank, Work

if TYPE_CHECKING:
    import torch

    from efficientbench.devices.base import Device
    from efficientbench.worker.rates import Task

ROUNDS = 5
GROUPS: tuple[Group, ...] = ("tp", "cp", "ep", "dp", "expert dp", "pp", "world")
MOST_STEPS, FEWEST_STEPS = 20, 3


def rank_work(job_file: Path) -> Work:
    """Return the work of a calibration's ranks."""
    job = CalibrationJob.read(job_file, trusted=True)
    log = OutputFolder(job.output).log
    return Work(log, partial(_calibrate, job), lambda error, file: diagnose(error, job, file), ends_at_once=True)


def _calibrate(job: CalibrationJob, rank: Rank) -> bool:
    with loading():
        device = find_device(job.config.device)
        place = device.prepare(rank.local)
        # After `prepare`: Megatron asks for the device as it is imported.
        with absent(*device.needless):
            from efficientbench.metrics.monitoring.exchange import gather
            from efficientbench.training import groups
            from efficientbench.training.collectives import collectives_begun
            from efficientbench.worker.preflight import compare
            from efficientbench.worker.rates import measure
    parallel, limit_s = job.config.parallel, job.config.faults.hang_limit_s
    rank.heartbeat.at(0, "calibrating")
    with (
        groups.world(device.backend, limit_s, device.group_device(place, job.layout.pp)),
        groups.model_parallel(parallel, job.config.training.seed, limit_s),
    ):
        rank.heartbeat.collectives = collectives_begun
        if job.preflight:
            compare(job, rank, device, place)
            return False
        tasks = list(_tasks(job, rank, device, place))
        rounds = gather(measure(tasks, device, ROUNDS, job.time_s, rank.report), list[list[float]])
        # Nodes may differ in memory: a step takes all ranks, or none.
        no_step = next(filter(None, gather(job.no_step, str | None)), None)
        steps = gather(_step_times(job, rank, device, place) if no_step is None else [], list[float])
    if no_step is not None:
        job = replace(job, missing={**job.missing, "a step of the run": no_step})
    if rank.number == 0:
        write_calibration(job.measured, _calibration(job, tasks, rounds, steps))
    return False


def _tasks(job: CalibrationJob, rank: Rank, device: Device, place: torch.device) -> Iterator[Task]:
    """Yield what is measured; where ranks share a host, also with fewer of them at once."""
    from efficientbench.metrics.monitoring.exchange import gather
    from efficientbench.worker.rates import device_tasks, link_tasks

    layout, grid = job.layout, RankGrid(job.layout)
    per_node, shared = layout.ranks_per_node, device.memory_capacity_bytes() is None
    fewer = [2**power for power in range(per_node.bit_length()) if 2**power < per_node] if shared else []
    first = rank.number - rank.local
    cores = usable_cores(gather(os.getpid(), int)[first : first + per_node])
    for at_once in (*fewer, per_node):
        threads = job.threads or max(1, len(os.sched_getaffinity(0)) // at_once) if shared else None
        yield from device_tasks(job.config, layout.tp, device, place, rank.local, at_once, threads, cores)
    for count in fewer:
        if count > 1 and layout.nodes == 1:
            yield from link_tasks("world", [range(count)], per_node, count, place)
    done = set()
    for kind in GROUPS:
        lists = tuple(grid.groups(kind))
        if len(lists[0]) > 1 and lists not in done:
            done.add(lists)
            yield from link_tasks(kind, lists, per_node, per_node, place)


def _step_times(job: CalibrationJob, rank: Rank, device: Device, place: torch.device) -> list[float]:
    """Return the times of this rank's steps of the run on random tokens, in seconds, after two that are not counted."""
    import torch.distributed as dist

    from efficientbench.metrics.monitoring.exchange import gather
    from efficientbench.worker.trial import random_trainer

    trainer = random_trainer(job, MOST_STEPS + 2, place)
    times: list[float] = []
    wanted = FEWEST_STEPS + 2
    while len(times) < wanted:
        dist.barrier()
        begin_s = time.perf_counter()
        trainer.train_step(len(times) + 1, rank.stop_requested)
        device.synchronize()
        times.append(time.perf_counter() - begin_s)
        if len(times) == 2:
            slowest_s = max(gather(times[-1], float))
            wanted = 2 + max(FEWEST_STEPS, min(MOST_STEPS, int(job.time_s / 4 / slowest_s)))
        rank.report(f"step {len(times)}")
    return times[2:]


def _calibration(
    job: CalibrationJob, tasks: Sequence[Task], rounds: Sequence[list[list[float]]], steps: Sequence[list[float]]
) -> Calibration:
    """Return the slowest rank's times, of rounds [ranks][tasks][rounds] and steps [ranks][steps]."""
    points = []
    for number, task in enumerate(tasks):
        times = [max(each) for each in zip(*(own[number] for own in rounds if own[number]), strict=True)]
        known = task.at_once, statistics.median(times), min(times), max(times)
        points.append(Point(task.work, task.size, *known, task.dtype, task.ranks, task.group, task.far))
    step_s = [max(each) for each in zip(*steps, strict=True)]
    return Calibration(
        conditions=dict(job.conditions),
        measured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        run=job.described,
        rounds=ROUNDS,
        points=tuple(points),
        missing=dict(job.missing),
        step_s=(statistics.median(step_s), min(step_s), max(step_s)) if step_s else None,
    )
