"""Run one configuration several times with consecutive seeds, each in a folder of its own below the run's."""

from __future__ import annotations

import os

from rich.console import Console

from efficientbench.config.schema import RunConfig
from efficientbench.devices.registry import find_device
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.metrics.analysis.repeats import group_repeats
from efficientbench.metrics.records.record import read_record
from efficientbench.metrics.report.comparison import print_spread
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.resume import complete_record
from efficientbench.running.run import plan_on, run


def run_repeats(config: RunConfig, mode: str, repeats: int, again: bool, fresh: bool = False) -> int:
    """Train, measure and record `config` with consecutive seeds; return the first exit code that is not 0.

    The first repeat has the configured seed. A repeat whose folder holds its complete record is skipped, so that the
    same command resumes an interrupted series.

    Args:
        config: the configuration of the first repeat.
        mode: `dsw` or `dlc`, see `run`.
        repeats: the number of repeats, 1 or more.
        again: whether complete repeats are trained again; their records then move to `previous/`.
        fresh: whether interrupted repeats start at step 1 instead of resuming from their last checkpoint.

    Raises:
        ConfigError, DeviceError, DataError, LaunchError, MetricsError: as `run` does.
    """
    configs = [with_seed(config, config.training.seed + index) for index in range(repeats)]
    # Decided for all repeats before any trains: the nodes share these folders and must decide alike.
    device = find_device(config.device)
    nodes = Cluster.from_environment(os.environ).nodes if mode == "dlc" else 1
    fitted = plan_on(config, device, nodes).config.training.micro_batch_size
    name = device.names()[0]
    folders = [OutputFolder.of_repeat(each) for each in configs]
    pairs = list(zip(configs, folders, strict=True))
    kept = [not again and complete_record(folder, each, fitted, name) is not None for each, folder in pairs]
    for number, ((each, folder), done) in enumerate(zip(pairs, kept, strict=True), start=1):
        state = f"complete, kept ({folder.record})" if done else "trains"
        print(f"repeat {number} of {repeats}, seed {each.training.seed}: {state}", flush=True)
        if not done and (exit_code := run(each, mode, folder, fresh)):
            return exit_code
    if mode == "dlc" and Cluster.from_environment(os.environ).node_rank > 0:
        # Only the first node has the records, perhaps after this process has ended.
        return 0
    records = [read_record(folder.record) for folder in folders]
    for group in group_repeats(records):
        print_spread(group, Console())
    return 0


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """Return the configuration with another seed."""
    return config.model_copy(update={"training": config.training.model_copy(update={"seed": seed})})
