"""Decide `training.micro_batch_size=auto`: the largest size that fits, by plan and by trial, once for a suite."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from efficientbench.architecture.variant import known
from efficientbench.basics.cgroup import memory_limit_bytes
from efficientbench.basics.errors import ConfigError, LaunchError
from efficientbench.basics.foreign import json_object
from efficientbench.basics.part import AUTO
from efficientbench.config.schema import RunConfig
from efficientbench.devices.registry import device_called, find_device
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.processes.failure import STOP_EXIT_CODES, Failure
from efficientbench.metrics.files import write_whole
from efficientbench.planning.plan import Hardware, Plan
from efficientbench.running.job import Job
from efficientbench.running.kind import set_for_ranks
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.ranks import run_ranks
from efficientbench.running.run import plan_on

FILE = "micro_batch.json"
"""File in the suite's folder: the size that was decided, and on which device."""
MOST_TOKENS = 16_384
"""Most tokens of a micro-batch: 16,384 rows of a product fill the processors of today's devices several times."""
ROOM = 0.9
"""Share of the memory that a plan may take: allocators lose some of it between tensors."""

Runs = Sequence[tuple[RunConfig, Hardware]]
"""Runs of a suite, each with the devices that it gets."""


def with_micro_batch(config: RunConfig, mode: str) -> RunConfig:
    """Return the configuration with a size in place of `auto`; unchanged where the user gave a number.

    Raises:
        ConfigError: no size fits, or there are several nodes.
        DeviceError: the device cannot be used.
        LaunchError: a size was tried and failed for another reason than memory.
    """
    size = decide_together([config], mode)
    return config if size is None else config.changed("training", micro_batch_size=size)


def decide_together(configs: Sequence[RunConfig], mode: str, trial: bool = True) -> int | None:
    """Return the size for all of these runs, of one suite and device, that say `auto`; None where none does.

    `trial`: see `decide`. Raises ConfigError, DeviceError, LaunchError: as `with_micro_batch`.
    """
    asking = [config for config in configs if config.training.micro_batch_size == AUTO]
    if not asking:
        return None
    if mode == "dlc" and Cluster.from_environment(os.environ).nodes > 1:
        raise ConfigError("training.micro_batch_size: auto tries sizes on one machine: give several nodes a number")
    device = find_device(asking[0].device)
    return decide([(config, device) for config in asking], device.type, device.names()[0], trial)


def decide(runs: Runs, device_type: str, device_name: str, trial: bool = True, nodes: int = 1) -> int:
    """Return the micro-batch size of all runs of a suite: the one in its file, or the largest that fits all.

    Skip runs that not even size 1 fits; planning them reports why.

    Args:
        runs: the runs of one suite.
        device_type: the type of their devices, by torch's name.
        device_name: the product name of their devices.
        trial: whether to try the run that needs most memory, and write the file; else decide by plan alone.
        nodes: nodes of each run; more than one only without a trial.

    Raises:
        ConfigError, LaunchError: as `with_micro_batch`.
    """
    file = Path(runs[0][0].output).absolute() / FILE
    runs = [(config, part) for config, part in runs if _plans([(config, part)], 1, nodes, room=1) is not None]
    if not runs:
        return 1
    kept = _read(file, device_name)
    if kept is not None:
        if _plans(runs, kept, nodes, room=1) is None:
            raise ConfigError(
                f"training.micro_batch_size: auto is {kept} in this suite ({file}), and not every run here "
                "can use it: set a number, or choose another folder with output=FOLDER"
            )
        return kept
    for size in _sizes([config for config, _ in runs]):
        plans = _plans(runs, size, nodes)
        if plans is None:
            continue
        if not trial:
            return size
        if _fits(max(plans, key=itemgetter(0))[1], device_type):
            write_whole(file, json.dumps({"micro_batch_size": size, "device": device_name}) + "\n")
            return size
    raise ConfigError("training.micro_batch_size: no size was found to fit for auto: give a number")


def _sizes(configs: Sequence[RunConfig]) -> list[int]:
    """Return the sizes that divide every run's global batch, the largest first."""
    batches = [config.training.global_batch_size for config in configs]
    most = min(max(1, MOST_TOKENS // config.training.seq_len) for config in configs)
    return [size for size in range(min(most, *batches), 0, -1) if all(batch % size == 0 for batch in batches)]


def _plans(runs: Runs, size: int, nodes: int, room: float = ROOM) -> list[tuple[int, Plan]] | None:
    """Return memory and plan of each run with this micro-batch size; None where it does not fit one of them.

    The memory is that of a rank, or of all ranks of a node where they share it, in bytes; 0 where no formula gives it.
    """
    plans = []
    for config, part in runs:
        try:
            plan = plan_on(config.changed("training", micro_batch_size=size), part, nodes)
        except ConfigError:
            return None
        own_bytes = part.memory_capacity_bytes()
        needed = known(plan.node_memory_bytes if own_bytes is None else plan.rank_memory_bytes) or 0
        # The plan has a smaller size where a replica would get less than one micro-batch.
        if plan.config.training.micro_batch_size != size or needed > room * (own_bytes or memory_limit_bytes()):
            return None
        plans.append((needed, plan))
    return plans


def _read(file: Path, device_name: str) -> int | None:
    """Return the size in the file; None where it was decided on another device, or the file is missing or damaged."""
    content = json_object(file)
    size, device = content.get("micro_batch_size"), content.get("device")
    return size if device == device_name and type(size) is int and size > 0 else None


def _fits(plan: Plan, device_type: str) -> bool:
    """Train a few steps of a run with all its ranks, and return whether memory sufficed."""
    set_for_ranks(device_called(device_type).environment(plan.layout.tp))
    config = plan.config
    folder = OutputFolder(OutputFolder.of(config).path / "micro_batch")
    Job(config, plan.layout, plan.budget, (), folder.path, trial=True).write(folder.config)
    failures: list[Failure] = []
    exit_code = run_ranks(
        "efficientbench.worker.rank",
        folder.config,
        plan.layout.ranks_per_node,
        folder.log,
        config.faults,
        on_failure=failures.append,
    )
    if exit_code in STOP_EXIT_CODES.values():
        # The user has stopped the trial, and with it the command.
        raise SystemExit(exit_code)
    size, fits = config.training.micro_batch_size, exit_code == 0
    if not fits and failures[0].kind != "out_of_memory":
        raise LaunchError(f"{config.name} with a micro-batch of {size}, tried for auto: {failures[0].reason}")
    shutil.rmtree(folder.path, ignore_errors=True)
    print(f"micro-batch {size} for auto: tried with {config.name}, {'fits' if fits else 'does not fit'}", flush=True)
    return fits
