"""Measure what this machine's devices and links reach, by a run's own ranks, and keep it for projections."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from efficientbench.architecture.variant import UndeclaredError
from efficientbench.basics.counted import number_of, seconds
from efficientbench.basics.errors import MetricsError
from efficientbench.basics.language import in_users_language
from efficientbench.config.schema import RunConfig
from efficientbench.devices.base import Device
from efficientbench.metrics.records.environment import version_of
from efficientbench.planning.basis import calibrated
from efficientbench.planning.calibration import (
    Calibration,
    Point,
    place,
    read_calibration,
    write_calibration,
)
from efficientbench.planning.fitting import DoesNotFitError, check_preflight
from efficientbench.planning.step_time import project
from efficientbench.planning.table import plain_table, print_tables
from efficientbench.running.job import Job
from efficientbench.running.kind import Site, find_site, set_for_ranks
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.parent import connected
from efficientbench.running.ranks import run_ranks
from efficientbench.running.run import plan_on

TIME_S = 120.0
"""Seconds for the rates; start and own steps come on top."""


@dataclass(frozen=True)
class CalibrationJob(Job):
    """The job of the ranks of `calibrate`."""

    conditions: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    """Work that is not measured → why."""
    no_step: str | None = None
    """Why the run's own step is not measured; None: it is."""
    time_s: float = TIME_S
    threads: int | None = None
    """Threads of each rank that the user set; None: the cores are divided among the ranks."""
    preflight: bool = False
    """Whether devices and links are only compared with each other, for `faults.preflight_s`."""

    @property
    def measured(self) -> Path:
        """The file of what the ranks measured, which projects nothing yet."""
        return self.output / "measured.json"

    @property
    def result(self) -> Path:
        """The file of the calibration."""
        return place(self.cache, dict(self.conditions))

    @property
    def described(self) -> str:
        """The run, and its ranks."""
        layout, sizes = self.layout, ("tp", "cp", "ep", "dp", "pp")
        grid = " × ".join(f"{name} {getattr(layout, name)}" for name in sizes if getattr(layout, name) > 1)
        where = f" on {number_of(layout.nodes, 'node')}" if layout.nodes > 1 else ""
        threads = f", OMP_NUM_THREADS={self.threads}" if self.threads else ""
        return f"{self.config.name}, {grid or '1 rank'}{where}{threads}"


def calibrate(config: RunConfig, mode: str, time_s: float = TIME_S, preflight: bool = False) -> int:
    """Measure by the ranks of a run, write the calibration into `data.cache`, and print it; return the exit code.

    Args:
        config: the run, whose groups, heads and step are measured.
        mode: `dsw` or `dlc`, see `find_site`.
        time_s: seconds for the rates.
        preflight: only compare devices and links with each other, and print which are slow.

    Raises:
        ConfigError, DeviceError, LaunchError, MetricsError: the run has no layout here, or ranks cannot start.
    """
    folder = OutputFolder(Path(config.data.cache).absolute() / "calibrate", "data.cache")
    site = find_site(config, mode, folder)
    set_for_ranks(site.device.environment(config.parallel.tp))
    job = replace(_job(config, site, time_s), preflight=preflight)
    if preflight:
        check_preflight(config, job.layout)
    earlier = _earlier(job)
    with folder.claimed() if site.is_first else contextlib.nullcontext(), connected(site) as link:
        try:
            # On a file system that is not shared, the first node's folder is not here.
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise folder.unwritable(error) from None
        job_file = folder.path / f"job_{link.node}.json"
        job.write(job_file)
        ranks, faults = job.ranks_per_node, config.faults
        work = "efficientbench.worker.calibration"
        exit_code = run_ranks(work, job_file, ranks, folder.log, faults, site.cluster, link)
    if exit_code == 0 and site.is_first and not preflight:
        measured = _finished(job)
        _print(measured, job.result, Console(width=160))
        if earlier is not None and measured.step_s is not None:
            print(in_users_language(_beside(earlier, measured.step_s[0], job)))
    return exit_code


def _job(config: RunConfig, site: Site, time_s: float) -> CalibrationJob:
    """Return the ranks' job. Raises ConfigError: the run has no layout on these devices."""
    device = site.device
    device.check(config.training.dtype)
    no_step = None
    try:
        plan = plan_on(config, device, site.nodes)
    except DoesNotFitError as error:
        plan, no_step = error.plan, str(error)
    shared = device.memory_capacity_bytes() is None
    missing = {"host to device": "the device computes in the host's memory"} if shared else {}
    missing |= {"what ranks send": "there is one rank"} if plan.layout.world_size == 1 else {}
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return CalibrationJob(
        *(plan.config, plan.layout, plan.budget, (), site.folder.path),
        conditions=_conditions(device),
        missing=missing,
        no_step=no_step,
        time_s=time_s,
        threads=int(threads) if threads.isdecimal() else None,
    )


def _conditions(device: Device) -> dict[str, str]:
    """Return everything by which a calibration is kept."""
    installed = {name: version_of(name) or "none" for name in ("torch", "transformer-engine")}
    return {"device": device.names()[0], "type": device.type, **installed, **device.versions()}


def _earlier(job: CalibrationJob) -> Calibration | None:
    """Return the calibration that this one replaces; None: it is damaged, or cannot project the run's step."""
    try:
        found = read_calibration(job.result)
    except MetricsError:
        return None
    layout = job.layout
    sends = layout.world_size == 1 or any(each.far or layout.nodes == 1 for each in found.sent)
    return found if sends and found.computes(job.config.training.dtype) else None


def _finished(job: CalibrationJob) -> Calibration:
    """Return the calibration with its own step over the step's projection, and write it so, whole or not at all."""
    measured = read_calibration(job.measured)
    if measured.step_s is not None:
        try:
            measured = replace(measured, step_ratio=measured.step_s[0] / _projected_s(measured, job)[0])
        except UndeclaredError as error:
            measured = replace(measured, step_s=None, missing={**measured.missing, "a step of the run": str(error)})
    write_calibration(job.result, measured)
    return measured


def _projected_s(calibration: Calibration, job: CalibrationJob) -> tuple[float, float, float]:
    """Return the time of the run's step by a calibration, and the ends of its interval."""
    found = calibrated(job.result, calibration, job.config.training.dtype)
    time_s = project(job.config, job.layout, found.rates, found).step_time_s
    low, high = found.time_factors
    return time_s, low * time_s, high * time_s


def _beside(earlier: Calibration, step_s: float, job: CalibrationJob) -> str:
    """Return how a step measured now stands to the interval by an earlier calibration, which is replaced."""
    _, low_s, high_s = _projected_s(earlier, job)
    said = f"by the calibration of {earlier.measured_at} a step takes {seconds(low_s)} to {seconds(high_s)}"
    if low_s <= step_s <= high_s:
        return f"{said}, as it does now"
    changed = "slower" if step_s > high_s else "faster"
    return f"{said}, and now {seconds(step_s)}: outside, so devices or links are {changed} than then"


def _print(calibration: Calibration, path: Path, console: Console) -> None:
    """Print the points, what is missing and why, and where the calibration is kept."""
    columns = ("ranks", "at once", "size", "time", "rate", "spread")
    rows = [_row(each) for each in calibration.points]
    notes = [f"{work}: n/a; {reason}" for work, reason in calibration.missing.items()]
    if calibration.step_s is not None:
        time_s, least_s, most_s = calibration.step_s
        notes.append(
            f"a step of {calibration.run}: {seconds(time_s)} ({seconds(least_s)} to {seconds(most_s)}), "
            f"{calibration.step_ratio:.3g} times its projection by these rates, as those of other runs will be scaled"
        )
    notes.append(f"kept for plans of this device, by versions of torch and kernels: {path}")
    title = f"{calibration.device}, by the ranks of {calibration.run}: medians of {calibration.rounds} rounds"
    print_tables(console, [plain_table("", columns, rows, title, left=1)], notes)


def _row(point: Point) -> tuple[str, ...]:
    flops = point.work in ("matmul", "attention")
    size, rate = (
        (f"{point.size / 1e9:,.3g} GFLOP", f"{point.rate / 1e12:,.3g} TFLOP/s")
        if flops
        else (f"{point.size / 1e6:,.3g} MB", f"{point.rate / 1e9:,.3g} GB/s")
    )
    times = f"{point.least_s / point.time_s:.2f} to {point.most_s / point.time_s:.2f}"
    group = f"{point.group}: {point.ranks}{', several nodes' if point.far else ''}" if point.group else ""
    name = f"{point.work} {point.dtype}".strip()
    return name, group, str(point.at_once), size, f"{point.time_s * 1e3:,.3g} ms", rate, times
