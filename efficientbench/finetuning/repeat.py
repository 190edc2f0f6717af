"""Runs one fine-tuning several times with consecutive seeds, each in a folder of its own below the run's."""

from __future__ import annotations

import os

from rich.console import Console

from efficientbench.devices.registry import find_device
from efficientbench.finetuning.complete import folder_of_repeat, is_complete, with_seeds
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.run import finetune
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.metrics.analysis.repeats import group_repeats
from efficientbench.metrics.records.record import read_record
from efficientbench.metrics.report.comparison import print_spread


def run_repeats(config: FinetuneConfig, mode: str, repeats: int, fresh: bool = False) -> int:
    """Train, measure and record `config` with consecutive seeds; return the first exit code that is not 0.

    A repeat has its own seed of new weights and of the order; what is held out is the same. One whose folder holds the
    complete record of the same configuration is kept.

    Raises:
        ConfigError, DeviceError, DataError, LaunchError, MetricsError: as `finetune` does.
    """
    configs = [with_seeds(config, index) for index in range(repeats)]
    folders = [folder_of_repeat(each) for each in configs]
    name = find_device(config.device).names()[0]
    for number, (each, folder) in enumerate(zip(configs, folders, strict=True), start=1):
        done = is_complete(folder, each, name)
        state = f"complete, kept ({folder.record})" if done else "trains"
        print(f"repeat {number} of {repeats}, seed {each.training.seed}: {state}", flush=True)
        if not done and (exit_code := finetune(each, mode, folder, fresh)):
            return exit_code
    if mode == "dlc" and Cluster.from_environment(os.environ).node_rank > 0:
        # Only the first node has the records, perhaps after this process has ended.
        return 0
    for group in group_repeats(read_record(folder.record) for folder in folders):
        print_spread(group, Console())
    return 0
