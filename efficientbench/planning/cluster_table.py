"""Tables of a plan for a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from efficientbench.architecture.variant import known, missing
from efficientbench.basics.counted import number_of
from efficientbench.basics.language import in_users_language
from efficientbench.costs.communication import Transfer, micro_batch_transfers, step_transfers
from efficientbench.costs.rank_grid import Group
from efficientbench.metrics.formulas.definitions import flops_utilization
from efficientbench.planning.cluster_plan import ClusterPlan
from efficientbench.planning.fitting import remedies
from efficientbench.planning.plan import gigabytes, memory_parts
from efficientbench.planning.step_time import bubble_fraction, crosses_nodes
from efficientbench.planning.table import plain_table, print_tables

IN_NODE, BETWEEN_NODES = "in the node", "between nodes"

_GROUPS: tuple[tuple[Group, str], ...] = (
    ("tp", "tensor"),
    ("cp", "context"),
    ("ep", "expert"),
    ("expert dp", "replicas of experts"),
    ("dp", "replicas (cp × dp)"),
    ("pp", "pipeline"),
)


def print_cluster_plan(cluster: ClusterPlan, console: Console) -> None:
    """Print the grid, the stages, a rank's transfers, and the projected step with its assumptions."""
    communication = known(lambda: _communication(cluster))
    tables = (_grid(cluster), _stages(cluster), communication, _projection(cluster))
    print_tables(console, tables, _notes(cluster))


def _grid(cluster: ClusterPlan) -> Table | str:
    layout = cluster.plan.layout
    experts = f", experts over ep {layout.ep}" if layout.ep > 1 else ""
    title = (
        f"{cluster.plan.config.name} on {number_of(layout.world_size, 'rank')} = tp {layout.tp} × cp {layout.cp} × "
        f"dp {layout.dp} × pp {layout.pp}{experts}; {number_of(layout.nodes, 'node')} of {layout.ranks_per_node}"
    )
    table = plain_table("group", ("ranks", "groups", "the first", "lies on"), title=title)
    for kind, name in _GROUPS:
        span = cluster.grid.span(kind)
        if span.size == 1 or (kind == "expert dp" and layout.ep == 1):
            continue
        groups = cluster.grid.groups(kind)
        first = ", ".join(map(str, groups[0][:3])) + (f" … {groups[0][-1]}" if span.size > 3 else "")
        lies = "one node" if span.nodes == 1 else f"{span.nodes} nodes, {span.per_node} a node"
        table.add_row(in_users_language(name), f"{span.size}", f"{len(groups):,}", first, in_users_language(lies))
    return table if table.row_count else in_users_language(title)


def _stages(cluster: ClusterPlan) -> Table:
    memory = known(lambda: cluster.plan.memory)
    if memory is None:
        rows = ((f"{stage}", f"{parameters:,}") for stage, parameters in enumerate(cluster.stage_parameters))
        return plain_table("stage", ("parameters",), rows, "a rank of each stage")
    parts = [name for name, _ in memory_parts(memory[0])]
    title = "a rank of each stage; memory at its peak, GB"
    table = plain_table("stage", ("parameters", *parts, "total"), title=title)
    for stage, each in enumerate(memory):
        largest = stage == cluster.fullest_stage and len(memory) > 1
        sizes = [f"{size / 1e9:.2f}" for _, size in memory_parts(each)]
        table.add_row(
            in_users_language(f"{stage}, largest") if largest else f"{stage}",
            f"{cluster.stage_parameters[stage]:,}",
            *sizes,
            f"{each.total / 1e9:.2f}",
            style="bold" if largest else None,
        )
    return table


class _Sent(NamedTuple):
    """A transfer of one rank, added up over a step."""

    transfer: Transfer
    link: str
    payload_bytes: float
    sent_bytes: float


def _communication(cluster: ClusterPlan) -> Table | None:
    """Return the table of a rank's transfers, on the stage that sends most; None where no rank sends anything."""
    stages = {stage: list(_sent(cluster, stage)) for stage in range(cluster.plan.layout.pp)}
    most = max(stages, key=lambda stage: sum(row.sent_bytes for row in stages[stage]))
    if not stages[most]:
        return None
    title = f"what a rank of stage {most}, which sends most, sends in a step"
    table = plain_table("purpose", ("operation", "group", "link", "payload", "sent"), title=title, left=3)
    for row in stages[most]:
        of = row.transfer
        purpose, carried = in_users_language(of.purpose), in_users_language(row.link)
        table.add_row(purpose, of.operation, of.group, carried, _size(row.payload_bytes), _size(row.sent_bytes))
    for link in (IN_NODE, BETWEEN_NODES):
        sent_bytes = sum(row.sent_bytes for row in stages[most] if row.link == link)
        names = in_users_language(f"in all {link}"), in_users_language(link)
        table.add_row(names[0], "", "", names[1], "", _size(sent_bytes), style="bold")
    return table


def _sent(cluster: ClusterPlan, stage: int) -> Iterator[_Sent]:
    config, layout = cluster.plan.config, cluster.plan.layout
    for times, transfers in (
        (layout.micro_batches, micro_batch_transfers(config, layout, stage)),
        (1, step_transfers(config, layout, stage)),
    ):
        for each in transfers:
            link = BETWEEN_NODES if crosses_nodes(each, cluster.grid, stage) else IN_NODE
            sent_bytes = each.sent_bytes(cluster.grid.span(each.group).size)
            yield _Sent(each, link, times * each.payload_bytes, times * sent_bytes)


def _projection(cluster: ClusterPlan) -> Table | None:
    projection = cluster.projection
    if projection is None or cluster.rates is None:
        return None
    total_s = projection.step_time_s
    table = plain_table("", ("ms", "share"), title=f"projected step on {cluster.rates.name}")
    parts = {**projection.compute_s, **projection.communication_s}
    if projection.bubble_s:
        parts["pipeline bubble"] = projection.bubble_s
    for name, time_s in sorted(parts.items(), key=lambda part: -part[1]):
        table.add_row(in_users_language(name), f"{time_s * 1e3:,.1f}", f"{time_s / total_s:.1%}")
    if projection.hidden_s:
        hidden = in_users_language("hidden behind computing")
        table.add_row(hidden, f"−{projection.hidden_s * 1e3:,.1f}", f"−{projection.hidden_s / total_s:.1%}")
    table.add_row(in_users_language("step"), f"{total_s * 1e3:,.1f}", "", style="bold")
    return table


def _notes(cluster: ClusterPlan) -> list[str]:
    plan, rates = cluster.plan, cluster.rates
    layout = plan.layout
    lines = [
        f"tokens per step: {plan.budget.tokens_per_step:,} in {layout.micro_batches:,} micro-batches of each replica"
    ]
    if layout.pp > 1:
        bubble = f"{layout.pp - 1} / ({layout.vpp} × {layout.micro_batches}) = {bubble_fraction(layout):.1%}"
        lines.append(f"pipeline bubble, of computing, were all stages equal (arXiv 2104.04473): {bubble}")
    for name, formula in (("memory", lambda: plan.memory), ("communication", lambda: _communication(cluster))):
        if reason := missing(formula):
            lines.append(f"{name}: n/a; {reason}")
    if rates is not None and rates.memory_bytes is not None and known(lambda: plan.memory) is not None:
        lines.append(_verdict(cluster, rates.memory_bytes))
    if cluster.projection is None or cluster.basis is None or rates is None:
        return [*lines, f"step time: n/a; {cluster.not_projected}"]
    tokens_s = plan.budget.tokens_per_step / cluster.projection.step_time_s
    flops = plan.budget.tokens_per_step * plan.flops.training
    used = flops_utilization(flops, cluster.projection.step_time_s, layout.world_size, rates.peak_flops)
    device_s = tokens_s / layout.world_size
    lines.append(f"projected: {tokens_s:,.0f} tokens/s, {device_s:,.0f} a device, MFU {used:.1%}")
    return [*lines, f"range: {cluster.basis.reached.tokens_range(device_s)}", *cluster.basis.assumptions]


def _verdict(cluster: ClusterPlan, capacity_bytes: float) -> str:
    """Return whether the fullest rank fits into a device, and which layouts of as many ranks would."""
    fullest = cluster.plan.memory[cluster.fullest_stage].total
    line = f"memory: {gigabytes(fullest)} of {gigabytes(capacity_bytes)} on the fullest rank: "
    if fullest <= capacity_bytes:
        return line + "fits"
    found = remedies(cluster.plan, int(capacity_bytes), same_ranks=True)
    return (
        line
        + "does NOT fit; "
        + (f"what would fit: {'; '.join(found)}" if found else "nothing on so many ranks would: take more of them")
    )


def _size(size_bytes: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.2f} {unit}"
    return f"{size_bytes:.0f} B"
