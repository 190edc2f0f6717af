"""Several runs of one configuration with consecutive seeds, each in a folder of its own below the run's."""

from __future__ import annotations

import os
import sys

from rich.console import Console

from efficientbench.config.errors import ConfigError
from efficientbench.config.schema import RunConfig
from efficientbench.devices.registry import find_device
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.metrics.analysis.repeats import group_repeats
from efficientbench.metrics.records.record import read_record
from efficientbench.metrics.report.comparison import print_spread
from efficientbench.running.complete import complete_record
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.run import plan_on, run


def run_repeats(config: RunConfig, mode: str, repeats: int, again: bool, fresh: bool = False) -> int:
    """Train, measure and record `config` so many times; returns the exit code of the first that did not end well.

    The first has the configured seed, each further one the next. A repeat whose folder holds its complete record is
    kept, so that a series that was interrupted goes on where it stopped.

    Args:
        config: the first run.
        mode: as of `run`.
        repeats: how many, 1 or more.
        again: train complete repeats again as well; their records move to `previous/`.
        fresh: begin those that were interrupted anew, whatever checkpoint there is.

    Raises:
        ConfigError: fewer than one repeat, and what `run` raises.
    """
    if repeats < 1:
        raise ConfigError(f"--repeat: {repeats} runs are none; 1 or more")
    configs = [_with_seed(config, config.training.seed + index) for index in range(repeats)]
    # All at once and before any trains: the nodes of a trial, which share these folders, must come to the same answer.
    device = find_device(config.device)
    nodes = Cluster.from_environment(os.environ).nodes if mode == "dlc" else 1
    fitted = plan_on(config, device, nodes).config.training.micro_batch_size
    name = device.names()[0]
    kept = [not again and _is_complete(each, fitted, name) for each in configs]
    for number, (each, done) in enumerate(zip(configs, kept, strict=True), start=1):
        state = f"complete, kept ({OutputFolder.of_repeat(each).record})" if done else "trains"
        print(f"repeat {number} of {repeats}, seed {each.training.seed}: {state}")
        sys.stdout.flush()
        if not done and (exit_code := run(each, mode, OutputFolder.of_repeat(each), fresh)):
            return exit_code
    if mode == "dlc" and Cluster.from_environment(os.environ).node_rank > 0:
        # The first node writes the records, perhaps later than this one ends.
        return 0
    records = [read_record(OutputFolder.of_repeat(each).record) for each in configs]
    for group in group_repeats(records):
        print_spread(group, Console())
    return 0


def _with_seed(config: RunConfig, seed: int) -> RunConfig:
    return config.model_copy(update={"training": config.training.model_copy(update={"seed": seed})})


def _is_complete(config: RunConfig, micro_batch_size: int, device_name: str) -> bool:
    return complete_record(OutputFolder.of_repeat(config), config, micro_batch_size, device_name) is not None
