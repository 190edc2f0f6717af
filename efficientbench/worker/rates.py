"""Measure what devices and the links between ranks reach: all ranks together, one task after the other, in rounds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from efficientbench.architecture.backbone import DTYPE_BYTES
from efficientbench.config.schema import RunConfig
from efficientbench.costs.communication import Operation, Transfer
from efficientbench.devices.base import Device
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.model.kernels import TORCH_DTYPES, product
from efficientbench.model.kernels.causal_attention import causal_attention
from efficientbench.model.kernels.swiglu import swiglu
from efficientbench.model.kernels.weight_gradient import add_product
from efficientbench.planning.calibration import moved_bytes
from efficientbench.training import groups

MOST_CALLS = 1000
WIDTH = 1024
"""Elements in a row of what the memory's work reads and writes."""

Do = Callable[[], object]


@dataclass(frozen=True)
class Task:
    """Something that ranks measure; the fields that a `Point` has too have its meaning."""

    work: str
    size: float
    make: Callable[[], Do] | None
    """Makes the tensors, and returns what is timed; None: this rank waits meanwhile."""
    at_once: int = 1
    dtype: str = ""
    ranks: int = 1
    group: str = ""
    far: bool = False
    threads: int | None = None
    """Threads of the host that each rank takes; None: as many as it has."""
    times: int = 1
    """How often one call does the work."""
    ranks_per_core: float = 1.0
    """Above 1, ranks take turns on the cores of their host."""


def measure(
    tasks: Sequence[Task], device: Device, rounds: int, time_s: float, report: Callable[[str], None]
) -> list[list[float]]:
    """Return for each task this rank's mean time in each round, in seconds; empty where it waits. All ranks call it.

    Each task gets an equal part of `time_s`, and at least one call a round. Rounds follow each other, so that what
    disturbs the machine for a while is seen as a spread, each in an order of its own: behind the same work, ranks that
    share a core would take the same turns in every round. `report` is told of each task, as progress.
    """
    share_s = time_s / rounds / len(tasks)
    counts = [_count(task, device, share_s) for task in tasks]
    found: list[list[float]] = [[] for _ in tasks]
    # All ranks draw the same orders.
    draws = random.Random(0)
    for _ in range(rounds):
        for number in draws.sample(range(len(tasks)), len(tasks)):
            report(tasks[number].work)
            taken_s = _seconds(tasks[number], device, counts[number])
            found[number] += [] if taken_s is None else [taken_s]
    return found


def _count(task: Task, device: Device, share_s: float) -> int:
    """Return how many calls of a task take the slowest rank about `share_s`; all ranks call this together.

    It is tried with ever more calls until they take that long: a single one that waited for others' turns on its core
    would leave rounds so short that they fit between such turns, and a slow rank would look like the others.
    """
    count = 1
    while True:
        # All ranks are busy equally often, or a collective would wait for ever.
        slowest_s = max(gather(_seconds(task, device, count) or 0.0, float))
        if count * slowest_s >= share_s or count == MOST_CALLS:
            return max(1, min(MOST_CALLS, int(share_s / max(slowest_s, 1e-9))))
        count = min(4 * count, MOST_CALLS)


def _seconds(task: Task, device: Device, count: int) -> float | None:
    """Return the mean time of `count` calls behind one that is not counted; None where this rank waits.

    Ranks begin to count together: of ranks that share a core, the slow one would else begin when the others are done.
    Of ranks that take turns on cores, each counts its own processor time, and as much again for each of the others on
    its core: how the system happens to share out cores within a round says little of a step, in which all wait for all.
    """
    if task.threads is not None:
        torch.set_num_threads(task.threads)
    do = None if task.make is None else task.make()
    if do is not None:
        do()
        device.synchronize()
    dist.barrier()
    if do is None:
        return None
    clock = time.process_time if task.ranks_per_core > 1 else time.perf_counter
    begin_s = clock()
    for _ in range(count):
        do()
    device.synchronize()
    return (clock() - begin_s) * max(task.ranks_per_core, 1.0) / count / task.times


def products(size: int, dtype: str, place: torch.device) -> Do:
    """Return a linear layer of `size` inputs, outputs and rows: forward, and the gradients of inputs and weight."""
    inputs, weight = (_drawn(size, size, dtype, place) for _ in range(2))
    total = torch.zeros(size, size, device=place)
    outputs = inputs @ weight.t()

    def multiply() -> None:
        product.linear(inputs, weight)
        torch.mm(outputs, weight)
        add_product(total, outputs, inputs)

    return multiply


def attention(config: RunConfig, tokens: int, tp: int, dtype: str, place: torch.device) -> Do:
    """Return causal attention of one sequence with a rank's share of the run's heads, forward and backward."""
    model = config.model
    heads = [model.heads // tp, *[max(model.key_value_heads // tp, 1)] * 2]
    query, key, value = (
        _drawn(tokens, count * model.head_dim, dtype, place).view(tokens, 1, count, -1).requires_grad_()
        for count in heads
    )
    ones = torch.ones(tokens, 1, heads[0] * model.head_dim, device=place, dtype=query.dtype)
    return lambda: torch.autograd.grad(causal_attention(query, key, value, 0.1), (query, key, value), ones)


def activation(config: RunConfig, rows: int, place: torch.device) -> Do:
    """Return SwiGLU of `rows` rows of WIDTH results, forward and backward, which mostly reads and writes memory."""
    gate_up = _drawn(rows, 2 * WIDTH, config.training.dtype, place).requires_grad_()
    ones = torch.ones(rows, WIDTH, device=place, dtype=gate_up.dtype)
    return lambda: torch.autograd.grad(swiglu(gate_up, bool(config.kernels.fused)), gate_up, ones)


def _drawn(rows: int, columns: int, dtype: str, place: torch.device) -> torch.Tensor:
    """Return repeated random rows, drawn by a generator of its own: those of the run go on as without it."""
    drawn = torch.randn(min(rows, 64), columns, generator=torch.Generator().manual_seed(0))
    return drawn.repeat(-(-rows // 64), 1)[:rows].to(place, TORCH_DTYPES[dtype])


def copied(size: int, place: torch.device) -> Do:
    """Return a copy of so many bytes of the host's pinned memory to the device."""
    host = torch.zeros(size, dtype=torch.uint8).pin_memory()
    return lambda: host.to(place, non_blocking=True)


def device_tasks(
    config: RunConfig,
    tp: int,
    device: Device,
    place: torch.device,
    local: int,
    at_once: int,
    threads: int | None,
    cores: float,
) -> Iterator[Task]:
    """Yield the work of one device, while the first `at_once` ranks of each node do it.

    Args:
        config: the run, of whose heads attention is measured, and of whose dtype memory.
        tp: ranks that share its heads.
        device: this rank's device type.
        place: this rank's device.
        local: this rank's number on its node.
        at_once: how many ranks of a node do it.
        threads: threads of the host that each of them takes.
        cores: cores of a node.
    """
    shared, dtype = device.memory_capacity_bytes() is None, config.training.dtype
    does, model = local < at_once, config.model
    crowd = at_once / cores if shared else 1.0
    # Processors multiply fp16 in plain loops.
    skipped = {*device.unsupported_dtypes(), *device.slow_dtypes(), *(["fp16"] if shared else [])} - {dtype}

    def task(work: str, size: float, make: Callable[[], Do], of: str = "") -> Task:
        return Task(work, size, make if does else None, at_once, dtype=of, threads=threads, ranks_per_core=crowd)

    for each in [name for name in TORCH_DTYPES if name not in skipped]:
        for size in (128, 256, 512, 1024) if shared else (256, 512, 1024, 2048, 4096, 8192):
            yield task("matmul", 6 * size**3, partial(products, size, each, place), each)
        for tokens in (128, 256, 512, 1024) if shared else (512, 2048, 8192):
            flops = 3 * 2 * tokens**2 * model.head_dim * (model.heads // tp)
            yield task("attention", flops, partial(attention, config, tokens, tp, each, place), each)
    for rows in (32, 128, 512, 2048) if shared else (512, 4096, 32768):
        moved = moved_bytes(rows * WIDTH * DTYPE_BYTES[dtype], bool(config.kernels.fused))
        yield task("memory", moved, partial(activation, config, rows, place))
    for size in () if shared else (2**20, 2**24, 2**28):
        yield task("host to device", size, partial(copied, size, place))


def link_tasks(
    kind: str, lists: Sequence[Sequence[int]], per_node: int, at_once: int, place: torch.device
) -> Iterator[Task]:
    """Yield what ranks send in groups, all groups at once. All ranks call this together: it makes the groups.

    Args:
        kind: the kind of the groups, like tp.
        lists: the ranks of each group; all groups have equally many.
        per_node: ranks on each node.
        at_once: ranks of a node that are in these groups.
        place: this rank's device.
    """
    group, ranks = groups.own_group(lists), len(lists[0])
    far = any(len({rank // per_node for rank in each}) > 1 for each in lists)
    operations: tuple[Operation, ...] = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send")
    for operation in operations:
        for payload in (2**12, 2**15, 2**18, 2**21, 2**24):
            sent = Transfer("", operation, "world", payload).sent_bytes(ranks)
            make = None if group is None else _sends(operation, payload, group, place)
            # One call of a send goes there and back.
            times = 2 if operation == "send" else 1
            yield Task(operation, sent, make, at_once, ranks=ranks, group=kind, far=far, times=times)


def _sends(
    operation: Operation, payload: int, group: dist.ProcessGroup, place: torch.device
) -> Callable[[], Do] | None:
    """Return what makes one operation on `payload` bytes; None where this rank has no partner in it."""
    size, own = group.size(), group.rank()
    other = own ^ 1
    if operation == "send" and other >= size:
        return None

    def make() -> Do:
        whole = torch.zeros(payload // 4 // size * size, device=place)
        part = torch.zeros(whole.numel() // size, device=place)
        if operation == "all-reduce":
            return lambda: dist.all_reduce(whole, group=group)
        if operation == "all-gather":
            return lambda: dist.all_gather_into_tensor(whole, part, group=group)
        if operation == "reduce-scatter":
            return lambda: dist.reduce_scatter_tensor(part, whole, group=group)
        if operation == "all-to-all":
            result = torch.empty_like(whole)
            return lambda: dist.all_to_all_single(result, whole, group=group)
        peer = dist.get_global_rank(group, other)

        def there_and_back() -> None:
            # The lower of the two ranks sends first.
            for sends in (own < other, own > other):
                (dist.send if sends else dist.recv)(whole, peer, group=group)

        return there_and_back

    return make
