"""The table of a search over layouts."""

from __future__ import annotations

from rich.console import Console

from efficientbench.config.variant import known
from efficientbench.costs.model import flops_per_token
from efficientbench.language.counted import number_of
from efficientbench.metrics.definitions import flops_utilization
from efficientbench.planning.plan_table import plain_table
from efficientbench.planning.search import Candidate, Search
from efficientbench.planning.step_time import assumptions

_COLUMNS = (
    *("tokens/s", "MFU", "step, ms", "exposed", "bubble", "GB/rank"),
    *("tp", "cp", "pp", "vpp", "dp", "ep", "micro-batch", "recompute"),
)


def print_search(found: Search, command: str, console: Console) -> None:
    """Print the fastest layouts, what they assume, and `command`, which runs the first."""
    best = found.ranked[0]
    ranks = number_of(best.layout.world_size, "rank")
    title = f"{best.config.name} on {ranks} of {found.rates.name}, {number_of(found.nodes, 'node')}, by projection"
    console.print(title, highlight=False, soft_wrap=True)
    table = plain_table("", _COLUMNS)
    for place, candidate in enumerate(found.ranked, start=1):
        table.add_row(f"{place}", *_row(candidate, found), style="bold" if place == 1 else None)
    console.print(table, highlight=False)
    console.print()
    for line in (*_notes(found), *assumptions(found.rates), f"the first: {command}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _row(candidate: Candidate, found: Search) -> tuple[str, ...]:
    training, layout, projection = candidate.config.training, candidate.layout, candidate.projection
    step_s, tokens = projection.step_time_s, training.global_batch_size * training.seq_len
    flops = known(lambda: flops_per_token(candidate.config.model, training.seq_len).training)
    peak = found.rates.peak_flops
    used = None if flops is None else flops_utilization(flops * tokens, step_s, layout.world_size, peak)
    return (
        f"{candidate.tokens_per_s:,.0f}",
        "n/a" if used is None else f"{used:.1%}",
        f"{step_s * 1e3:,.1f}",
        f"{candidate.exposed_s / step_s:.1%}",
        f"{projection.bubble_s / step_s:.1%}",
        f"{candidate.memory_bytes / 1e9:.2f}",
        *map(str, (layout.tp, layout.cp, layout.pp, layout.vpp, layout.dp, layout.ep)),
        str(training.micro_batch_size),
        training.recompute,
    )


def _notes(found: Search) -> list[str]:
    training, capacity_bytes = found.ranked[0].config.training, found.rates.memory_bytes or 0
    return [
        f"{found.fitting:,} layouts with a micro-batch fit into {capacity_bytes / 1e9:g} GB, each with the least "
        f"recomputation; {found.too_large:,} do not",
        f"a step has {training.global_batch_size:,} sequences of {training.seq_len:,} tokens in each; tensor "
        "parallelism stays in a node; keys that you give stay",
        "exposed: transfers that nothing hides; as fast by three digits: fewest ranks in tp first, then in pp",
    ]
