"""Print the tables of a fine-tuning's plan."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from efficientbench.basics.counted import number_of
from efficientbench.basics.language import in_users_language
from efficientbench.finetuning.planning.cost import ZeroLayout
from efficientbench.finetuning.planning.plan import RESERVE, PlanRequest, TuningPlan, asked, fitting
from efficientbench.finetuning.planning.step import (
    HOST_BYTES_S,
    HOST_MEMORY_BYTES_S,
    LINK,
    REACHED,
    compute_time_s,
    crosses_nodes,
)
from efficientbench.planning.table import ABSENT, plain_table, print_lines, print_tables

SHOWN_LAYOUTS = 5
LENGTHS = (256, 512, 1024, 2048, 4096)
"""The mean lengths of samples for which the speed is shown, up to `data.max_length`."""


_Titled = tuple[str, Table]
"""A title and the table below it; rich would wrap the title of a table to the table's width."""


def print_tuning_plan(request: PlanRequest, console: Console) -> None:
    """Print memory, traffic and speed of the configured layout, and the best layouts that fit."""
    plan, best = asked(request), fitting(request)
    for title, table in filter(None, (_memory(plan), _traffic(plan), _speed(plan), _layouts(best, plan))):
        print_lines(console, [title])
        print_tables(console, [table])
    print_lines(console, _notes(plan, best))


def _memory(plan: TuningPlan) -> _Titled:
    request = plan.request
    parameters, trained = request.shape.parameters, request.trained.parameters(request.shape)
    title = (
        f"{request.name}: {parameters:,} parameters, {trained:,} trained ({trained / parameters:.2%}); "
        f"{_words(plan.layout)} on {number_of(plan.layout.world, 'rank')}"
    )
    rows = ((in_users_language(name), f"{size / 1e9:.2f}") for name, size in plan.memory.items())
    table = plain_table("peak memory of a rank", ("GB",), rows)
    verdict = "fits" if plan.fits else "does NOT fit"
    total = in_users_language(f"total: {verdict} in {request.memory_bytes / 1e9:g} GB")
    table.add_row(total, f"{plan.total_bytes / 1e9:.2f}", style="bold")
    if plan.host_bytes:
        table.add_row(in_users_language("on a node's host"), f"{plan.host_bytes / 1e9:.2f}")
    return title, table


def _traffic(plan: TuningPlan) -> _Titled | None:
    if not plan.traffic:
        return None
    title = f"a step of {plan.layout.accumulation} micro-batches of {plan.layout.micro} on each rank"
    rows = (
        (
            in_users_language(each.purpose),
            each.operation,
            _link(crosses_nodes(each, plan.layout)),
            f"{each.sent_bytes / 1e9:.1f}",
        )
        for each in plan.traffic
    )
    table = plain_table("what a rank sends", ("operation", "link", "GB"), rows, left=2)
    for between in (False, True):
        if size := plan.sent_bytes(between):
            table.add_row(in_users_language("in all"), "", _link(between), f"{size / 1e9:.1f}", style="bold")
    return title, table


def _link(between_nodes: bool) -> str:
    return in_users_language("across nodes" if between_nodes else "in the node")


def _speed(plan: TuningPlan) -> _Titled | None:
    """Return the speed by the mean length of samples; only the compute time if rates of links are not known."""
    request, layout = plan.request, plan.layout
    if request.rates is None:
        return None
    title = f"projected on {request.rates.name}, by the mean length of samples"
    columns = ("computing s", "communication s", "offload s", "step s", "samples/s")
    table = plain_table("tokens of a sample", columns if plan.time(layout.tokens) is not None else columns[:1])
    for tokens in [length for length in LENGTHS if length < layout.tokens] + [layout.tokens]:
        projected = plan.time(tokens)
        if projected is None:
            compute_s = compute_time_s(request.shape, request.trained, layout, request.rates.peak_flops, tokens)
            table.add_row(f"{tokens:,}", f"{compute_s:.1f}")
            continue
        low, high = projected.shortest_s, projected.longest_s
        table.add_row(
            f"{tokens:,}",
            f"{projected.compute_s:.1f}",
            f"{projected.communication_s:.1f}",
            f"{projected.host_s:.1f}",
            in_users_language(f"{low:.1f} to {high:.1f}"),
            in_users_language(f"{request.batch / high:.1f} to {request.batch / low:.1f}"),
        )
    return title, table


def _layouts(best: list[TuningPlan], own: TuningPlan) -> _Titled | None:
    if not best:
        return None
    columns = ("GB a rank", "GB sent", "across nodes", "GFLOP/token", "step s", "")
    table = plain_table("ZeRO, micro-batch × accumulation", columns)
    shown = best[:SHOWN_LAYOUTS]
    if own.fits and own.layout not in [plan.layout for plan in shown]:
        shown.append(own)
    for plan in shown:
        projected = plan.time(plan.layout.tokens)
        table.add_row(
            in_users_language(_words(plan.layout)),
            f"{plan.total_bytes / 1e9:.1f}",
            f"{(plan.sent_bytes(False) + plan.sent_bytes(True)) / 1e9:.1f}",
            f"{plan.sent_bytes(True) / 1e9:.1f}",
            f"{plan.flops.hardware / 1e9:.1f}",
            ABSENT if projected is None else f"{projected.longest_s:.1f}",
            in_users_language("as asked") if plan.layout == own.layout else "",
        )
    return "layouts that fit, the best first", table


def _words(layout: ZeroLayout) -> str:
    parts = [f"ZeRO-{layout.stage}", *([f"hpZ {layout.hpz}"] if layout.hpz > 1 else [])]
    parts += [f"{layout.micro} × {layout.accumulation}", "recomputed" if layout.recompute else "activations kept"]
    parts += [f"offload {layout.offload}"] if layout.offload != "none" else []
    return ", ".join(parts)


def _notes(plan: TuningPlan, best: list[TuningPlan]) -> list[str]:
    flops, rates = plan.flops, plan.request.rates
    again = f", {flops.recomputed / 1e9:.1f} of them recomputed" if flops.recomputed else ""
    lines = [
        f"FLOPs of a token at full length: {flops.training / 1e9:.1f} GFLOP of the method, {flops.hardware / 1e9:.1f} "
        f"on the device{again}"
    ]
    if plan.request.dtype != "bf16":
        lines.append(f"memory and traffic are those of bf16: training.dtype={plan.request.dtype} takes more of both")
    if not best:
        lines.append(
            f"no layout of ZeRO 2 or 3 fits {plan.request.memory_bytes / 1e9:g} GB: more ranks, or shorter samples"
        )
    if plan.time(plan.layout.tokens) is not None and rates is not None:
        lines.append(
            f"assumed, not measured: {REACHED:.0%} of {rates.peak_flops / 1e12:g} TFLOP/s, {LINK:.0%} of each link, "
            f"{HOST_BYTES_S / 1e9:g} GB/s to the host and {HOST_MEMORY_BYTES_S / 1e9:g} GB/s in its memory; a step "
            "lies between all parts overlapping and none. The best layout is the fastest without overlap"
        )
    else:
        reason = "--device NAME, like --device 'H100 SXM', gives it"
        if rates is not None:
            reason = (
                f"what links carry is not known; computing assumes {REACHED:.0%} of {rates.peak_flops / 1e12:g} TFLOP/s"
            )
        lines.append(
            f"step time: n/a; {reason}. The best layout is that with the least traffic between nodes, then within "
            "them, then FLOPs"
        )
    return [
        *lines,
        *([f"a layout fits that leaves {RESERVE:.0%} of the memory free"] if best else []),
        f"All figures are computed for samples of full length ({plan.layout.tokens:,} tokens), none is measured",
    ]
