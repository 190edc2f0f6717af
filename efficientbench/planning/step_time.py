"""How long a training step takes, projected from counted work, counted transfers and a device's rates; no torch."""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.communication import Transfer, micro_batch_transfers, step_transfers
from efficientbench.costs.compute import Works, micro_batch_work, optimizer_work
from efficientbench.costs.rank_grid import RankGrid
from efficientbench.metrics.hardware import DeviceRates


@dataclass(frozen=True)
class Efficiency:
    """Which part of a device's peaks is reached. The defaults are assumptions, not measurements."""

    matmul: float = 0.7
    attention: float = 0.45
    memory: float = 0.8
    link: float = 0.8


ASSUMED = Efficiency()


@dataclass(frozen=True)
class Projection:
    """A step's time by what it goes to, in seconds, on the ranks of the slowest stage."""

    compute_s: dict[str, float]
    """Kind of work → its time."""
    communication_s: dict[str, float]
    """Purpose → the time of its transfers, of which none hides behind computing."""
    bubble_s: float
    """What the pipeline waits while it fills and drains."""

    @property
    def step_time_s(self) -> float:
        return sum(self.compute_s.values()) + sum(self.communication_s.values()) + self.bubble_s


def project(config: RunConfig, layout: Layout, rates: DeviceRates, efficiency: Efficiency = ASSUMED) -> Projection:
    """A step's time: of each operation the longer of computing and moving bytes, one after the other; every
    transfer at the rate of the slowest link that its group crosses, while nothing is computed, latencies left out;
    stages of unequal length in 1F1B, micro-batches at the pace of the slowest.

    `rates.between_nodes_bytes_s` must be known where the layout has several nodes.
    """
    grid, stages = RankGrid(layout), range(layout.pp)
    compute = [_compute_times(micro_batch_work(config, layout, stage), rates, efficiency) for stage in stages]
    exchange = [
        _transfer_times(micro_batch_transfers(config, layout, stage), grid, stage, rates, efficiency)
        for stage in stages
    ]
    lengths = [sum(compute[stage].values()) + sum(exchange[stage].values()) for stage in stages]
    slowest = max(stages, key=lengths.__getitem__)
    once = _transfer_times(step_transfers(config, layout, slowest), grid, slowest, rates, efficiency)
    micro_batches = layout.micro_batches
    compute_s = {kind: time_s * micro_batches for kind, time_s in compute[slowest].items()}
    optimizer: dict[str, Works] = {"optimizer": (optimizer_work(config, layout, slowest),)}
    communication_s = {purpose: time_s * micro_batches for purpose, time_s in exchange[slowest].items()}
    for purpose, time_s in once.items():
        communication_s[purpose] = communication_s.get(purpose, 0) + time_s
    return Projection(
        compute_s=compute_s | _compute_times(optimizer, rates, efficiency),
        communication_s=communication_s,
        bubble_s=(sum(lengths) - lengths[slowest]) / layout.vpp,
    )


def bubble_fraction(layout: Layout) -> float:
    """Of a pipeline with equal stages, waiting over computing: (p − 1) / (v · m), with p ranks, v virtual stages on
    each and m micro-batches (arXiv 2104.04473, sections 2.2.1 and 2.2.2)."""
    return (layout.pp - 1) / (layout.vpp * layout.micro_batches)


def work_time_s(kind: str, works: Works, rates: DeviceRates, efficiency: Efficiency) -> float:
    """One after another, of each the longer of computing and moving bytes; with an Efficiency of ones the roofline's
    bound (arXiv 0809.3163)."""
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
        bandwidth = link_bytes_s(each, grid, stage, rates) * efficiency.link
        sent = each.sent_bytes(grid.span(each.group).size)
        times[each.purpose] = times.get(each.purpose, 0) + sent / bandwidth
    return times


def link_bytes_s(transfer: Transfer, grid: RankGrid, stage: int, rates: DeviceRates) -> float:
    """What a rank of the transfer's group can send: in the node; or between nodes, where a ring crosses each boundary
    once for all ranks of the group on a node, with the network cards of all of them. An all-to-all between nodes sends
    most of its shares over the rank's own card."""
    if not crosses_nodes(transfer, grid, stage):
        return rates.in_node_bytes_s
    assert rates.between_nodes_bytes_s is not None
    ring = transfer.operation in ("all-reduce", "all-gather", "reduce-scatter")
    cards = grid.span(transfer.group).per_node if ring else 1
    return min(rates.in_node_bytes_s, rates.between_nodes_bytes_s * cards)


def crosses_nodes(transfer: Transfer, grid: RankGrid, stage: int) -> bool:
    """Whether it leaves a node, for any rank of the stage."""
    if transfer.operation == "send":
        return grid.sends_between_nodes(stage) or grid.sends_between_nodes((stage - 1) % grid.layout.pp)
    return grid.span(transfer.group).nodes > 1
