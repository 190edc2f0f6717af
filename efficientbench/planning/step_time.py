"""Projection of a training step's time from counted work, counted transfers and a device's rates, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.communication import GRADIENTS, WEIGHTS, Transfer, micro_batch_transfers, step_transfers
from efficientbench.costs.compute import Works, micro_batch_work, optimizer_work
from efficientbench.costs.memory import rank_parameters
from efficientbench.costs.rank_grid import RankGrid
from efficientbench.metrics.sensors.hardware import DeviceRates
from efficientbench.planning.efficiency import Efficiency, Shares, reached

FORWARD = 1 / 3
"""A micro-batch's forward pass, of its forward and backward pass."""


@dataclass(frozen=True)
class Projection:
    """A step's time on the ranks of the slowest stage, by part, in seconds."""

    compute_s: dict[str, float]
    """Kind of work → its time in seconds."""
    communication_s: dict[str, float]
    """Purpose → time of its transfers in seconds."""
    hidden_s: float
    """Seconds of `communication_s` in which the device computes."""
    bubble_s: float
    """Seconds that the pipeline waits while it fills and drains."""

    @property
    def step_time_s(self) -> float:
        return sum(self.compute_s.values()) + sum(self.communication_s.values()) - self.hidden_s + self.bubble_s


def project(config: RunConfig, layout: Layout, rates: DeviceRates, shares: Shares | None = None) -> Projection:
    """Project a step's time; without shares with those of published runs.

    Operations run one after another; each takes the longer of computing and moving its bytes. A transfer takes the rate
    of the slowest link that its group crosses, without latency; `_hidden_s` gives the time that hides behind computing.
    Stages may be unequal; in 1F1B the slowest sets the pace of the micro-batches.

    `rates.between_nodes_bytes_s` must be known where the layout has several nodes.
    """
    shares = shares or reached(rates.name, config.model).efficiency
    # Interleaved stages hardly wait for each other.
    efficiency = shares.at(config, layout, 1 if layout.vpp == 1 else layout.pp)
    grid, stages = RankGrid(layout), range(layout.pp)
    # Inner stages differ in the links to their neighbours at most.
    kinds = [(stage == 0, stage == layout.pp - 1, _sends_far(grid, stage)) for stage in stages]
    of_kind = {
        kind: (
            _compute_times(micro_batch_work(config, layout, stage), rates, efficiency),
            _transfer_times(micro_batch_transfers(config, layout, stage), grid, stage, rates, efficiency),
        )
        for kind, stage in zip(kinds, stages, strict=True)
        if kinds.index(kind) == stage
    }
    compute, exchange = ([of_kind[kind][part] for kind in kinds] for part in (0, 1))
    lengths = [sum(compute[stage].values()) + sum(exchange[stage].values()) for stage in stages]
    slowest = max(stages, key=lengths.__getitem__)
    once = _transfer_times(step_transfers(config, layout, slowest), grid, slowest, rates, efficiency)
    micro_batches = layout.micro_batches
    compute_s = {kind: time_s * micro_batches for kind, time_s in compute[slowest].items()}
    optimizer: dict[str, Works] = {"optimizer": optimizer_work(config, layout, slowest)}
    communication_s = {purpose: time_s * micro_batches for purpose, time_s in exchange[slowest].items()}
    for purpose, time_s in once.items():
        communication_s[purpose] = communication_s.get(purpose, 0) + time_s
    return Projection(
        compute_s=compute_s | _compute_times(optimizer, rates, shares.at(config, layout, layout.pp)),
        communication_s=communication_s,
        hidden_s=_hidden_s(config, layout, slowest, once, sum(compute[slowest].values())),
        bubble_s=_bubble_s(config, layout, rates, shares, lengths, slowest),
    )


def _bubble_s(
    config: RunConfig, layout: Layout, rates: DeviceRates, shares: Shares, lengths: list[float], slowest: int
) -> float:
    """Return the seconds that the slowest stage does not compute its own micro-batches, or computes beside others.

    `lengths`: each stage's time of a micro-batch, as `shares` have it while one stage computes.
    """
    found = [shares.at(config, layout, stages) for stages in range(1, layout.pp + 1)]
    if layout.vpp > 1 or all(each == found[0] for each in found):
        return (sum(lengths) - lengths[slowest]) / layout.vpp
    work = micro_batch_work(config, layout, slowest)
    times = [sum(_compute_times(work, rates, each).values()) for each in found]
    slower = [time_s / times[0] for time_s in times]
    return shared_pipeline_s(lengths, layout.micro_batches, slower) - layout.micro_batches * lengths[slowest]


def shared_pipeline_s(lengths_s: Sequence[float], micro_batches: int, slower: Sequence[float]) -> float:
    """Return the seconds in which stages take all micro-batches by 1F1B (arXiv 2104.04473, section 2.2.1).

    The stages share a host, and so compute faster while others wait. A pass begins once its stage has ended the pass
    before, and its neighbour the pass that it continues.

    Args:
        lengths_s: each stage's time of a micro-batch while it computes alone.
        micro_batches: how many there are.
        slower: the factor by which a stage is slower while 1, 2, … stages compute.
    """
    orders = [_order(stage, len(lengths_s), micro_batches) for stage in range(len(lengths_s))]
    ended: set[tuple[int, bool, int]] = set()
    left: dict[int, float] = {}
    time_s = 0.0
    while any(orders):
        for stage, order in enumerate(orders):
            if order and stage not in left and _needed(stage, len(orders), *order[0]) <= ended:
                left[stage] = lengths_s[stage] * (FORWARD if order[0][0] else 1 - FORWARD)
        factor, step_s = slower[len(left) - 1], min(left.values())
        time_s += factor * step_s
        left = {stage: rest_s - step_s for stage, rest_s in left.items()}
        for stage in [stage for stage, rest_s in left.items() if rest_s <= 0]:
            del left[stage]
            ended.add((stage, *orders[stage].pop(0)))
    return time_s


def _order(stage: int, stages: int, micro_batches: int) -> list[tuple[bool, int]]:
    """Return a stage's passes in order: whether forward, and the micro-batch."""
    first = min(stages - stage - 1, micro_batches)
    order = [(True, number) for number in range(first)]
    for number in range(micro_batches - first):
        order += [(True, first + number), (False, number)]
    return order + [(False, number) for number in range(micro_batches - first, micro_batches)]


def _needed(stage: int, stages: int, forward: bool, number: int) -> set[tuple[int, bool, int]]:
    """Return the neighbour's pass that a pass continues; nothing at the pipeline's ends."""
    before = stage - 1 if forward else stage + 1
    return {(before, forward, number)} if 0 <= before < stages else set()


def _hidden_s(config: RunConfig, layout: Layout, stage: int, once: dict[str, float], micro_batch_s: float) -> float:
    """Return the seconds of the step's transfers between replicas that hide behind computing.

    Gradients are sent during the last micro-batch's backward pass, two thirds of its `micro_batch_s`, and weights
    arrive during the first micro-batch's forward pass. The last bucket of gradients and the first of weights have
    nothing left to hide behind. Megatron cuts no buckets on stages after the first.
    """
    if not config.parallel.overlap or stage > 0:
        return 0.0
    replicas = layout.cp * layout.dp
    buckets = -(-rank_parameters(config, layout, stage) // config.parallel.bucket(replicas))
    share = 1 - 1 / buckets
    gradients = min(once.get(GRADIENTS, 0.0) * share, micro_batch_s * 2 / 3)
    return gradients + min(once.get(WEIGHTS, 0.0) * share, micro_batch_s / 3)


def bubble_fraction(layout: Layout) -> float:
    """Return waiting over computing in a pipeline with equal stages: (p − 1) / (v · m).

    p = ranks, v = virtual stages on each, m = micro-batches (arXiv 2104.04473, sections 2.2.1 and 2.2.2).
    """
    return (layout.pp - 1) / (layout.vpp * layout.micro_batches)


def work_time_s(kind: str, works: Works, rates: DeviceRates, efficiency: Efficiency) -> float:
    """Return the seconds of `works` one after another, each the longer of computing and moving its bytes.

    With an Efficiency of ones this is the roofline's bound (arXiv 0809.3163).
    """
    reached = efficiency.attention if kind == "attention" else efficiency.matmul
    flops, memory = rates.peak_flops * reached, rates.memory_bytes_s * efficiency.memory
    return sum(max(work.flops / flops, work.moved_bytes / memory) for work in works)


def _compute_times(work: dict[str, Works], rates: DeviceRates, efficiency: Efficiency) -> dict[str, float]:
    return {kind: work_time_s(kind, works, rates, efficiency) for kind, works in work.items()}


def _transfer_times(
    transfers: list[Transfer], grid: RankGrid, stage: int, rates: DeviceRates, efficiency: Efficiency
) -> dict[str, float]:
    times: dict[str, float] = {}
    for each in transfers:
        ranks, far = grid.span(each.group).size, crosses_nodes(each, grid, stage)
        time_s = efficiency.transfer_s(each, ranks, far, link_bytes_s(each, grid, stage, rates))
        times[each.purpose] = times.get(each.purpose, 0) + time_s
    return times


def link_bytes_s(transfer: Transfer, grid: RankGrid, stage: int, rates: DeviceRates) -> float:
    """Return the bytes a second that a rank of the transfer's group can send, in the node or between nodes.

    Between nodes, a ring crosses each boundary once for all ranks of the group on a node, over the network cards of all
    of them. An all-to-all sends most of its shares over the rank's own card.
    """
    if not crosses_nodes(transfer, grid, stage):
        return rates.in_node_bytes_s
    assert rates.between_nodes_bytes_s is not None
    ring = transfer.operation in ("all-reduce", "all-gather", "reduce-scatter")
    cards = grid.span(transfer.group).per_node if ring else 1
    return min(rates.in_node_bytes_s, rates.between_nodes_bytes_s * cards)


def crosses_nodes(transfer: Transfer, grid: RankGrid, stage: int) -> bool:
    """Return whether the transfer leaves a node, for any rank of the stage."""
    return _sends_far(grid, stage) if transfer.operation == "send" else grid.span(transfer.group).nodes > 1


def _sends_far(grid: RankGrid, stage: int) -> bool:
    """Return whether any rank of the stage sends to another node in the pipeline, forward or backward."""
    return grid.sends_between_nodes(stage) or grid.sends_between_nodes((stage - 1) % grid.layout.pp)
