"""A profile as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efficientbench.profiling.kinds import KINDS
from efficientbench.profiling.roofline import Bound, largest_gap
from efficientbench.profiling.trace import Breakdown

if TYPE_CHECKING:
    from rich.console import Console

    from efficientbench.metrics.hardware import DeviceRates


def print_profile(
    breakdown: Breakdown, found: dict[str, Bound], rates: DeviceRates | None, reason: str | None, console: Console
) -> None:
    """Prints where a step's time went, and what it is longest above its bound.

    Args:
        breakdown: of the traced steps.
        found: bounds by kind; empty where the device's rates are not known.
        rates: of the device; None where they are not known, with the `reason`.
        reason: why there are no bounds.
        console: where to.
    """
    from rich.table import Table

    where = "the device's time" if breakdown.on_device else "time of the training thread's operations"
    title = f"a step of {breakdown.step_time_s * 1e3:,.1f} ms, mean of {breakdown.steps} traced; {where}, rank 0"
    console.print(title, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("kind", no_wrap=True)
    for column in ("ms", "share", "GFLOP", "GB moved", "bound, ms", "of the bound"):
        table.add_column(column, justify="right", no_wrap=True)
    for kind in KINDS:
        time_s, bound = breakdown.seconds[kind], found.get(kind)
        shown = ["", "", "", ""]
        if bound is not None:
            reached = f"{bound.bound_s / time_s:.0%}" if time_s else "n/a"
            shown = [f"{bound.flops / 1e9:,.1f}", f"{bound.moved_bytes / 1e9:.3f}"]
            shown += [f"{bound.bound_s * 1e3:,.1f}", reached]
        table.add_row(kind, f"{time_s * 1e3:,.1f}", f"{time_s / breakdown.step_time_s:.1%}", *shown)
    console.print(table)
    if rates is None:
        console.print(f"roofline: n/a; {reason}", highlight=False, soft_wrap=True)
        return
    kind, gap_s = largest_gap(found, breakdown)
    console.print(
        f"largest gap: {kind}, {gap_s * 1e3:,.1f} ms a step ({gap_s / breakdown.step_time_s:.1%}) above what "
        f"{rates.peak_flops / 1e9:,.0f} GFLOP/s and {rates.memory_bytes_s / 1e9:,.0f} GB/s allow\n"
        f"rates: {rates.name}, {'; '.join(rates.sources[:1])}",
        highlight=False,
        soft_wrap=True,
    )
