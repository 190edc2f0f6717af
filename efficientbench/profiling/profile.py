"""Traces the last steps of a run, and prints their time by kind of work beside the device's roofline.

The roofline is the time that the work would take at the device's peaks (arXiv 0809.3163).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.table import Table

from efficientbench.architecture.variant import known, missing
from efficientbench.basics.errors import MetricsError
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig
from efficientbench.costs.compute import micro_batch_work, optimizer_work
from efficientbench.devices.base import Device
from efficientbench.devices.registry import find_device
from efficientbench.metrics.report.sections.rank_table import StepShares, write_step_shares
from efficientbench.metrics.sensors.hardware import DeviceRates, device_rates
from efficientbench.planning.efficiency import Efficiency
from efficientbench.planning.generation_plan import METHOD, memory_bytes_s
from efficientbench.planning.step_time import work_time_s
from efficientbench.planning.table import plain_table
from efficientbench.profiling.trace import KINDS, Breakdown, break_down, read_trace
from efficientbench.running.job import Job
from efficientbench.running.micro_batch import with_micro_batch
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.run import run

STEPS = 3
"""Steps to trace where the configuration sets none."""


def profile(config: RunConfig, mode: str) -> int:
    """Train a run into `profile/` below its folder, trace its last steps, and print the table and the trace's path.

    Returns the exit code of the run.

    Raises:
        ConfigError, DeviceError, DataError, LaunchError, MetricsError: the message is for the user.
    """
    config = with_micro_batch(config, mode)
    if not config.measurement.profile_steps:
        config = config.changed("measurement", profile_steps=STEPS)
    folder = OutputFolder(OutputFolder.of(config).path / "profile")
    exit_code = run(config, mode, folder, fresh=True)
    # With several nodes, only rank 0's node has the trace.
    if exit_code == 0 and folder.trace.exists():
        print_profile(folder)
    return exit_code


def print_profile(folder: OutputFolder) -> None:
    """Print the traced steps' time by kind of work and the kind farthest above its bound; write the shares."""
    job = Job.read(folder.config)
    profiled_as = tuple(name for view in job.config.model.views.values() for name in view.attention_variant.profiled_as)
    breakdown = break_down(read_trace(folder.trace), profiled_as)
    shares = StepShares(
        steps=breakdown.steps,
        step_time_s=breakdown.step_time_s,
        # Differences of sums of intervals may be a rounding below 0.
        seconds={kind: max(time_s, 0.0) for kind, time_s in breakdown.seconds.items()},
        on_device=breakdown.on_device,
    )
    write_step_shares(shares, folder.path)
    rates, reason = _rates(job, find_device(job.config.device))
    found: dict[str, Bound] = {}
    if rates is not None:
        counted = partial(bounds, job.config, job.layout, rates)
        found, reason = known(counted) or {}, missing(counted)
    console = Console(width=140, highlight=False, soft_wrap=True)
    source = "the device's time" if breakdown.on_device else "time of the training thread's operations"
    console.print(
        f"a step of {breakdown.step_time_s * 1e3:,.1f} ms, mean of {breakdown.steps} traced; {source}, rank 0"
    )
    console.print(_table(breakdown, found), soft_wrap=False)
    if rates is None or not found:
        console.print(f"roofline: n/a; {reason}")
    else:
        kind, gap_s = largest_gap(found, breakdown)
        console.print(
            f"largest gap: {kind}, {gap_s * 1e3:,.1f} ms a step ({gap_s / breakdown.step_time_s:.1%}) above what "
            f"{rates.peak_flops / 1e9:,.0f} GFLOP/s and {rates.memory_bytes_s / 1e9:,.0f} GB/s allow\n"
            f"rates: {rates.name}, {'; '.join(rates.sources[:1])}"
        )
    console.print(f"trace        {folder.trace} (opens in ui.perfetto.dev)")


def _rates(job: Job, device: Device) -> tuple[DeviceRates | None, str | None]:
    """Return the device's rates, or why they are unknown; a host's rates are measured, others are from the table."""
    if device.memory_capacity_bytes() is None:
        cores = len(os.sched_getaffinity(0))
        threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, cores // job.layout.ranks_per_node))
        return probe_host(job.config.training.dtype, threads), None
    try:
        return device_rates(device.names()[0], job.config.training.dtype, job.config.measurement.peak_flops), None
    except MetricsError as error:
        return None, str(error)


def _table(breakdown: Breakdown, found: dict[str, Bound]) -> Table:
    table = plain_table("kind", ("ms", "share", "GFLOP", "GB moved", "bound, ms", "of the bound"))
    for kind in KINDS:
        time_s, bound = breakdown.seconds[kind], found.get(kind)
        cells = [f"{time_s * 1e3:,.1f}", f"{time_s / breakdown.step_time_s:.1%}"]
        if bound is not None:
            cells += [f"{bound.flops / 1e9:,.1f}", f"{bound.moved_bytes / 1e9:.3f}", f"{bound.bound_s * 1e3:,.1f}"]
            cells.append(f"{bound.bound_s / time_s:.0%}" if time_s else "n/a")
        table.add_row(kind, *cells)
    return table


PEAK = Efficiency(matmul=1, attention=1, memory=1, link=1)

_KINDS_IN_A_TRACE = {"elementwise": "other", "embedding": "other"}
"""Kind of counted work → kind of the trace that it belongs to, where they differ."""


@dataclass(frozen=True)
class Bound:
    """The work of one kind that a rank does in a step."""

    flops: float
    moved_bytes: float
    bound_s: float
    """Sum over the operations of the longer of their FLOPs and their bytes over the device's peaks, in seconds."""


def bounds(config: RunConfig, layout: Layout, rates: DeviceRates) -> dict[str, Bound]:
    """Return the bound of each kind of work in a step of the first rank, which computes the first stage."""
    works = {
        kind: tuple(work.times(layout.micro_batches) for work in each)
        for kind, each in micro_batch_work(config, layout, 0).items()
    }
    works["optimizer"] = optimizer_work(config, layout, 0)
    found: dict[str, Bound] = {}
    for counted, each in works.items():
        kind = _KINDS_IN_A_TRACE.get(counted, counted)
        before = found.get(kind, Bound(0, 0, 0))
        found[kind] = Bound(
            flops=before.flops + sum(work.flops for work in each),
            moved_bytes=before.moved_bytes + sum(work.moved_bytes for work in each),
            bound_s=before.bound_s + work_time_s(counted, each, rates, PEAK),
        )
    return found


def largest_gap(found: dict[str, Bound], breakdown: Breakdown) -> tuple[str, float]:
    """Return the kind of work in which a step loses most time, and the lost time in seconds.

    Lost time is computing time above its bound, and all time of `communication` and `idle`. It is negative where caches
    save bytes that are counted.
    """
    gaps = {kind: breakdown.seconds[kind] - bound.bound_s for kind, bound in found.items()}
    gaps |= {kind: breakdown.seconds[kind] for kind in ("communication", "idle")}
    kind = max(gaps, key=gaps.__getitem__)
    return kind, gaps[kind]


def probe_host(dtype: str, threads: int) -> DeviceRates:
    """Measure the processor's FLOP/s and bytes a second with `threads` threads, in about a second.

    The work is matrix products in the dtype, and a sum of large tensors.
    """
    import torch

    from efficientbench.metrics.monitoring.matmul_peak import measured_matmul_flops

    torch.set_num_threads(threads)
    return DeviceRates(
        name="this machine",
        backend="",
        peak_flops=measured_matmul_flops(torch.device("cpu"), dtype),
        memory_bytes_s=memory_bytes_s(),
        memory_bytes=None,
        in_node_bytes_s=0,
        between_nodes_bytes_s=None,
        sources=(f"measured now with {threads} threads: the fastest of some large products, {METHOD}",),
    )
