"""A run whose last steps are traced, and what the trace tells."""

from __future__ import annotations

import os

from rich.console import Console

from efficientbench.config.schema import RunConfig
from efficientbench.devices.base import Device
from efficientbench.devices.registry import find_device
from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.hardware import DeviceRates, device_rates
from efficientbench.profiling.probe import probe_host
from efficientbench.profiling.roofline import bounds
from efficientbench.profiling.table import print_profile
from efficientbench.profiling.trace import break_down, read_trace
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.run import run

STEPS = 3


def profile(config: RunConfig, mode: str) -> int:
    """Train the run into `profile/` below its folder, tracing its last steps; print the table, and say where the trace
    lies. Returns the exit code of the run.

    Raises:
        ConfigError, DeviceError, DataError, LaunchError, MetricsError: for the user.
    """
    if not config.measurement.profile_steps:
        traced = config.measurement.model_copy(update={"profile_steps": STEPS})
        config = config.model_copy(update={"measurement": traced})
    folder = OutputFolder(OutputFolder.of(config).path / "profile")
    exit_code = run(config, mode, folder, fresh=True)
    if exit_code == 0 and folder.trace.exists():
        show(folder)
    return exit_code


def show(folder: OutputFolder) -> None:
    """Print what the trace in a run's folder tells."""
    job = Job.read(folder.config)
    breakdown = break_down(read_trace(folder.trace))
    rates, reason = _rates(job, find_device(job.config.device))
    found = bounds(job.config, job.layout, breakdown, rates) if rates else {}
    console = Console(width=140)
    print_profile(breakdown, found, rates, reason, console)
    console.print(f"trace        {folder.trace} (opens in ui.perfetto.dev)", highlight=False, soft_wrap=True)


def _rates(job: Job, device: Device) -> tuple[DeviceRates | None, str | None]:
    """The device's rates, of the table or, where ranks compute on the host, measured; or why they are not known."""
    if device.memory_capacity_bytes() is None:
        cores = len(os.sched_getaffinity(0))
        threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, cores // job.layout.ranks_per_node))
        return probe_host(job.config, threads), None
    try:
        return device_rates(device.names()[0], job.config.training.dtype, job.config.measurement.peak_flops), None
    except MetricsError as error:
        return None, str(error)
