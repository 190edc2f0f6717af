"""Searches for the layout, micro-batch and recomputation with which a run is fastest on a cluster, by projection."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, product
from operator import itemgetter

from pydantic import ValidationError
from rich.console import Console

from efficientbench.architecture.variant import known
from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError
from efficientbench.basics.part import AUTO
from efficientbench.config.layout import Layout, whole_nodes
from efficientbench.config.schema import RunConfig
from efficientbench.costs.memory import memory_by_stage
from efficientbench.costs.model import flops_per_token
from efficientbench.metrics.formulas.definitions import flops_utilization
from efficientbench.metrics.sensors.hardware import DeviceRates
from efficientbench.planning.basis import Basis, basis
from efficientbench.planning.cluster_plan import accelerator
from efficientbench.planning.plan import gigabytes, with_kernels
from efficientbench.planning.step_time import Projection, project
from efficientbench.planning.table import ABSENT, plain_table, print_lines, print_tables

_COLUMNS = (
    *("tokens/s", "MFU", "step, ms", "exposed", "bubble", "GB/rank"),
    *("tp", "cp", "pp", "vpp", "dp", "ep", "micro-batch", "recompute"),
)


def print_search(found: Search, command: str, console: Console) -> None:
    """Print the fastest layouts, their assumptions, and `command`, which runs the first."""
    best = found.ranked[0]
    ranks = number_of(best.layout.world_size, "rank")
    title = f"{best.config.name} on {ranks} of {found.rates.name}, {number_of(found.nodes, 'node')}, by projection"
    print_lines(console, [title])
    table = plain_table("", _COLUMNS)
    for place, candidate in enumerate(found.ranked, start=1):
        table.add_row(f"{place}", *_row(candidate, found), style="bold" if place == 1 else None)
    print_tables(console, [table], (*_notes(found), *found.basis.assumptions, f"the first: {command}"))


def _row(candidate: Candidate, found: Search) -> tuple[str, ...]:
    training, layout, projection = candidate.config.training, candidate.layout, candidate.projection
    step_s, tokens = projection.step_time_s, training.global_batch_size * training.seq_len
    flops = known(lambda: flops_per_token(candidate.config.model, training.seq_len).training)
    peak = found.rates.peak_flops
    used = None if flops is None else flops_utilization(flops * tokens, step_s, layout.world_size, peak)
    return (
        f"{candidate.tokens_per_s:,.0f}",
        ABSENT if used is None else f"{used:.1%}",
        f"{step_s * 1e3:,.1f}",
        f"{candidate.exposed_s / step_s:.1%}",
        f"{projection.bubble_s / step_s:.1%}",
        f"{candidate.memory_bytes / 1e9:.2f}",
        *map(str, (layout.tp, layout.cp, layout.pp, layout.vpp, layout.dp, layout.ep)),
        str(training.micro_batch_size),
        training.recompute,
    )


def _notes(found: Search) -> list[str]:
    best, capacity_bytes = found.ranked[0], found.rates.memory_bytes or 0
    training = best.config.training
    # By the errors of projections.
    speeds = found.basis.reached.tokens_range(best.tokens_per_s / best.layout.world_size)
    split = [each.config.parallel.sp for each in found.ranked if each.layout.tp > 1]
    sharded = ", rows with tp above 1 have parallel.sp=true" if split and all(split) else ""
    return [
        f"{found.fitting:,} layouts with a micro-batch fit into {capacity_bytes / 1e9:g} GB, each with the least "
        f"recomputation; {found.too_large:,} do not",
        f"a step has {training.global_batch_size:,} sequences of {training.seq_len:,} tokens in each; tensor "
        f"parallelism stays in a node{sharded}; keys that you give stay",
        f"range of the first: {speeds}",
        "exposed: transfers that nothing hides; as fast by three digits: fewest ranks in tp first, then in pp",
    ]


MOST_RANKED = 10
MOST_STAGES = 16
MOST_VIRTUAL_STAGES = 4
"""Most virtual stages on each pipeline rank."""
CONTEXT_RANKS = (1, 2, 4, 8)
MOST_TOKENS = 16_384
"""Most tokens of a micro-batch on one rank: more do not use a processor better."""
SEARCHED = (
    *("parallel.tp", "parallel.sp", "parallel.cp", "parallel.pp", "parallel.vpp", "parallel.ep"),
    *("training.micro_batch_size", "training.recompute"),
)
"""Keys that a search sets, unless the user has set them."""


@dataclass(frozen=True)
class Candidate:
    """A layout with micro-batch and recomputation that fits, and its projected step."""

    config: RunConfig
    layout: Layout
    memory_bytes: int
    """Peak memory of the fullest rank."""
    projection: Projection

    @property
    def tokens_per_s(self) -> float:
        """Projected tokens a second of all ranks together."""
        training = self.config.training
        return training.global_batch_size * training.seq_len / self.projection.step_time_s

    @property
    def exposed_s(self) -> float:
        """Seconds of a step's transfers that no computing hides."""
        return sum(self.projection.communication_s.values()) - self.projection.hidden_s


@dataclass(frozen=True)
class Search:
    """The result of a search."""

    ranked: tuple[Candidate, ...]
    """The MOST_RANKED fastest candidates; where three digits are equal, fewest ranks in tp, then in pp, come first."""
    fitting: int
    """Number of layouts with a micro-batch that fit."""
    too_large: int
    """Number of layouts with a micro-batch that need more than a device's memory, however much is recomputed."""
    basis: Basis
    nodes: int

    @property
    def rates(self) -> DeviceRates:
        """The rates of the device."""
        return self.basis.rates


Laid = tuple[RunConfig, Layout]


def search(config: RunConfig, world: int, devices_per_node: int, device: str, given: Collection[str] = ()) -> Search:
    """Rank the layouts, micro-batches and recomputations of a run on `world` accelerators.

    For a layout with a micro-batch only the least recomputation that fits is ranked: more only takes time. The global
    batch and the sequence do not change.

    Args:
        config: the run's configuration.
        world: number of ranks, all of which are used.
        devices_per_node: ranks on each node; a smaller world is one node.
        device: a name that `basis` takes, like 'H100 SXM'.
        given: the keys of SEARCHED that the user has set, and that the search does not change.

    Raises:
        ConfigError: no layout works, none fits, or a variant declares no formula for memory or time.
        MetricsError: as `basis`.
    """
    stands = basis(device, config, world)
    rates = stands.rates
    per_node, nodes = whole_nodes(world, devices_per_node)
    if rates.memory_bytes is None:
        raise ConfigError(f"--search: the memory of {rates.name} does not follow from its name")
    if nodes > 1 and rates.between_nodes_bytes_s is None:
        raise ConfigError(f"--search: the table of devices lacks what the network of a node of {rates.name} carries")
    chosen = accelerator(config, rates)
    config = with_kernels(config, chosen)
    found: list[Candidate] = []
    too_large: list[tuple[int, RunConfig]] = []
    for laid in _layouts(config, world, per_node, nodes, given):
        sized = ((each, layout, _fullest(each, layout, chosen.runtime_bytes)) for each, layout in laid)
        fitting = next((each for each in sized if each[2] <= rates.memory_bytes), None)
        if fitting is None:
            # The last recomputes most and so needs the least memory.
            too_large.append((_fullest(*laid[-1], chosen.runtime_bytes), laid[-1][0]))
        else:
            found.append(Candidate(*fitting, project(fitting[0], fitting[1], rates, stands.reached.efficiency)))
    valid = (each for each in sorted(found, key=_order) if _is_valid(each.config))
    ranked = tuple(islice(valid, MOST_RANKED))
    if not ranked:
        raise ConfigError(_nothing(config, per_node, nodes, too_large, rates))
    return Search(ranked, len(found), len(too_large), stands, nodes)


def words_of(changed: RunConfig, config: RunConfig) -> list[str]:
    """Return the `key=value` texts that turn `config` into `changed`, for the keys of SEARCHED."""
    words = []
    for key in SEARCHED:
        part, _, name = key.partition(".")
        value, before = (getattr(getattr(each, part), name) for each in (changed, config))
        if value != before:
            words.append(f"{key}={str(value).lower()}")
    return words


def _order(candidate: Candidate) -> tuple[float, ...]:
    layout, tokens_per_s = candidate.layout, candidate.tokens_per_s
    return (-float(f"{tokens_per_s:.3g}"), layout.tp, layout.pp, layout.cp, layout.vpp, -tokens_per_s)


def _fullest(config: RunConfig, layout: Layout, runtime_bytes: int) -> int:
    return max(stage.total for stage in memory_by_stage(config, layout, runtime_bytes))


def _is_valid(config: RunConfig) -> bool:
    """Return whether the schema accepts the run, whose keys may exclude each other."""
    try:
        RunConfig.model_validate(config.model_dump())
    except ValidationError:
        return False
    return True


def _layouts(config: RunConfig, world: int, per_node: int, nodes: int, given: Collection[str]) -> Iterator[list[Laid]]:
    """Yield for each layout and micro-batch the runs that can work, in order of recomputation, the least first."""
    training = config.training
    for grid in _grids(config, world, per_node, given):
        split = config.changed("parallel", **grid)
        replicas = world // (split.parallel.tp * split.parallel.cp * split.parallel.pp)
        share, rest = divmod(training.global_batch_size, replicas)
        if rest or split.parallel.dp not in (None, replicas):
            continue
        most = min(share, max(1, MOST_TOKENS * split.parallel.cp // training.seq_len))
        for size in _fixed(config, given, "training.micro_batch_size") or _divisors(share, most):
            laid = []
            for recompute in _fixed(config, given, "training.recompute") or ("none", "selective", "full"):
                each = split.changed("training", micro_batch_size=size, recompute=recompute)
                with suppress(ConfigError):
                    laid.append((each, Layout.of(each, per_node, nodes)))
            if laid:
                yield laid


def _grids(config: RunConfig, world: int, per_node: int, given: Collection[str]) -> Iterator[Mapping[str, object]]:
    """Yield the values of `parallel` that use all ranks; tensor parallelism stays in a node."""
    model, seq_len = config.model, config.training.seq_len
    tensor = _fixed(config, given, "parallel.tp") or _divisors(per_node)
    context = _fixed(config, given, "parallel.cp") or CONTEXT_RANKS
    stages = _fixed(config, given, "parallel.pp") or _divisors(model.layers, MOST_STAGES)
    experts = _fixed(config, given, "parallel.ep") or (_divisors(model.moe.experts) if model.moe else [1])
    for tp, cp, pp in product(tensor, context, stages):
        if world % (tp * cp * pp):
            continue
        # Sequence parallelism sends equally many bytes, and keeps fewer activations.
        (sp,) = _fixed(config, given, "parallel.sp") or [tp > 1 and seq_len // cp % tp == 0]
        virtual = _divisors(model.layers // pp, MOST_VIRTUAL_STAGES) if pp > 1 else [1]
        for vpp, ep in product(_fixed(config, given, "parallel.vpp") or virtual, experts):
            yield {"tp": tp, "sp": sp, "cp": cp, "pp": pp, "vpp": vpp, "ep": ep}


def _fixed(config: RunConfig, given: Collection[str], key: str) -> list | None:
    """Return the one value of a key that the user has set; None where the search chooses."""
    part, _, name = key.partition(".")
    value = getattr(getattr(config, part), name)
    undecided = name == "micro_batch_size" and value == AUTO
    return [value] if key in given and not undecided else None


def _divisors(number: int, most: int | None = None) -> list[int]:
    return [each for each in range(1, min(number, most or number) + 1) if number % each == 0]


def _nothing(
    config: RunConfig, per_node: int, nodes: int, too_large: Sequence[tuple[int, RunConfig]], rates: DeviceRates
) -> str:
    """Return why no candidate is left."""
    where = f"{number_of(per_node * nodes, 'rank')} of {rates.name}"
    if too_large:
        needed, least = min(too_large, key=itemgetter(0))
        words = " ".join(words_of(least, config)) or "as it is"
        return (
            f"{config.name}: nothing fits on {where}: a rank needs at least {gigabytes(needed)} of "
            f"{gigabytes(rates.memory_bytes or 0)} ({words})"
        )
    try:
        Layout.of(config, per_node, nodes)
    except ConfigError as error:
        return f"{config.name}: no layout works on {where}: {error}"
    return f"{config.name}: no layout works on {where} with the keys that are given"
