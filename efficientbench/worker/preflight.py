"""Compare devices and links before a run: each is measured in rounds, and what is slower twice is named."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.basics.language import in_users_language
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.devices.base import Device
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.metrics.records.outliers import (
    LEAST_SLOWNESS,
    LEAST_SLOWNESS_OF_HOSTS,
    find_slow,
    rounds_to_compare,
)
from efficientbench.metrics.records.record_parts import Preflight, SlowPart
from efficientbench.planning.calibration import moved_bytes
from efficientbench.running.job import Job
from efficientbench.running.rank_process import Rank
from efficientbench.training import groups
from efficientbench.worker.rates import WIDTH, Do, Task, activation, measure, products

MOST_PARTNERS = 15
"""Other ranks with which a rank measures its links; of fewer ranks each measures all."""

Links = dict[str, list[float]]


def compare(job: Job, rank: Rank, device: Device, place: torch.device) -> Preflight:
    """Return how the devices and links of all ranks compare, and print it on rank 0; all ranks call this together.

    Products and what reads and writes memory are compared among devices, links within nodes and between nodes among
    themselves, each direction at its receiver. Where something is slow, all are measured once more, and what is slow
    again is named: what disturbed the others only for a while is not.
    """
    config, layout, world = job.config, job.layout, job.layout.world_size
    met, time_s = pairings(world), config.faults.preflight_s
    work = list(_device_work(config, device, place))
    links = sum(len(pairs) for pairs in met) * 2
    rounds = rounds_to_compare(max(links, world))
    least = LEAST_SLOWNESS_OF_HOSTS if device.memory_capacity_bytes() is None else LEAST_SLOWNESS

    def report(what: str) -> None:
        # A fault here is in no step.
        rank.heartbeat.at(0, f"preflight: {what}")

    with groups.group_for_a_while() as group:
        send = partial(_link, rank.number, group, device, place)
        tasks = [*work, *(send(pairs, back) for pairs in met for back in (False, True))]

        def slower() -> dict[str, float]:
            found = gather(measure(tasks, device, rounds, time_s, report), list[list[float]])
            return _slow(layout, [task.work for task in work], met, found, least)

        slow = slower()
        if slow:
            again = slower()
            slow = {name: min(times, again[name]) for name, times in slow.items() if name in again}
    if (allocator := device.allocator()) is not None:
        allocator.empty_cache()
    parts = [SlowPart(*each) for each in sorted(slow.items(), key=lambda each: -each[1])]
    preflight = Preflight(time_s, rounds, world, links, parts)
    if rank.number == 0:
        print(in_users_language("\n".join(_described(preflight))), flush=True)
    return preflight


def _slow(
    layout: Layout, work: list[str], met: list[list[tuple[int, int]]], found: list[list[list[float]]], least: float
) -> dict[str, float]:
    """Return what of each rank's times, by task and round, is slow → how many times as long as the others it takes."""

    def named(number: int) -> str:
        return f"node {number // layout.ranks_per_node}, device {number % layout.ranks_per_node}"

    compared: list[Links] = []
    for number, task in enumerate(work):
        compared.append({f"{task} on {named(rank)}": times[number] for rank, times in enumerate(found)})
    within: Links = {}
    between: Links = {}
    for number, pairs in enumerate(met):
        for first, second in pairs:
            for back, (sender, receiver) in enumerate(((first, second), (second, first))):
                far = sender // layout.ranks_per_node != receiver // layout.ranks_per_node
                times = found[receiver][len(work) + 2 * number + back]
                (between if far else within)[f"link from {named(sender)} to {named(receiver)}"] = times
    return {name: times for each in (*compared, within, between) for name, times in find_slow(each, least).items()}


def _described(preflight: Preflight) -> list[str]:
    """Return the lines to print of a preflight."""
    what = f"{preflight.devices:,} devices and {preflight.links:,} links in {preflight.rounds} rounds"
    if not preflight.slow:
        return [f"preflight: {what}, none slower than the others"]
    said = [f"  {each.what}: {each.times_others:.2f} times as long as the others" for each in preflight.slow]
    return [f"preflight: {what}, {len(said)} slower than the others:", *said]


def _device_work(config: RunConfig, device: Device, place: torch.device) -> Iterator[Task]:
    """Yield the work by which devices are compared, large enough to fill each."""
    dtype, shared = config.training.dtype, device.memory_capacity_bytes() is None
    size, rows = (256, 256) if shared else (4096, 32768)
    yield Task("matmul", 6 * size**3, partial(products, size, dtype, place))
    moved = moved_bytes(rows * WIDTH * DTYPE_BYTES[dtype], bool(config.kernels.fused))
    yield Task("memory", moved, partial(activation, config, rows, place))


def _link(
    own: int, group: dist.ProcessGroup, device: Device, place: torch.device, pairs: list[tuple[int, int]], back: bool
) -> Task:
    """Return what a rank does while the first of each pair sends to the second, or with `back` receives from it."""
    payload = 2**20 if device.memory_capacity_bytes() is None else 2**26
    pair = next((each for each in pairs if own in each), None)
    if pair is None:
        return Task("send", payload, None)
    peer, sends = pair[own == pair[0]], (own == pair[0]) != back

    def make() -> Do:
        values = torch.zeros(payload // 4, device=place)
        return partial(dist.send if sends else dist.recv, values, peer, group=group)

    return Task("send", payload, make)


def pairings(world: int) -> list[list[tuple[int, int]]]:
    """Return pairs of ranks, each rank in one pair of each pairing: all of a tournament, or at most MOST_PARTNERS."""
    if world == 1:
        return []
    seats = world + world % 2
    found = []
    for number in range(0, seats - 1, -(-(seats - 1) // MOST_PARTNERS)):
        others = [(number + place) % (seats - 1) for place in range(seats - 1)]
        pairs = [(others[0], seats - 1), *((others[place], others[-place]) for place in range(1, seats // 2))]
        found.append([(min(pair), max(pair)) for pair in pairs if max(pair) < world])
    return found
