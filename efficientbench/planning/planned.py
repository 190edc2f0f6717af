"""Plans of named runs for programs."""

from __future__ import annotations

from numbers import Integral
from pathlib import Path
from typing import overload

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import check_is_no_file
from efficientbench.config.matrix import MATRIX
from efficientbench.metrics.sensors.hardware import known_device
from efficientbench.planning.cluster_plan import ClusterPlan, make_cluster_plan
from efficientbench.planning.plan import Plan, plan_anywhere
from efficientbench.planning.vocabulary import resolve_run


@overload
def plan(name: str, *keys: str, smoke: bool = False, matrix: str | Path = MATRIX) -> Plan: ...


@overload
def plan(
    name: str,
    *keys: str,
    smoke: bool = False,
    matrix: str | Path = MATRIX,
    world: int,
    device: str | None = None,
    devices_per_node: int | None = None,
) -> ClusterPlan: ...


@overload
def plan(
    name: str,
    *keys: str,
    smoke: bool = False,
    matrix: str | Path = MATRIX,
    device: str,
    devices_per_node: int | None = None,
) -> ClusterPlan: ...


def plan(
    name: str,
    *keys: str,
    smoke: bool = False,
    matrix: str | Path = MATRIX,
    world: int | None = None,
    device: str | None = None,
    devices_per_node: int | None = None,
) -> Plan | ClusterPlan:
    """Return what a run will be, computed from its configuration; nothing is trained, and no text is read.

    Args:
        name: the run's name, like 'gqa_1.5B'.
        keys: overrides like 'training.seq_len=4096', as on a command line.
        smoke: whether the model is scaled down, as by `--smoke`.
        matrix: the file that names the run.
        world: number of accelerators; None: those of a usual machine of `device`; without one too, the plan holds for
            any machine, and has no time.
        device: a name in the table of devices, like 'H100 SXM'; None: no step time is projected.
        devices_per_node: with `world` or `device`: accelerators on each node; None: 8.

    Raises:
        ConfigError: there is no such run or key, or it is no text, the output is a file, a number of accelerators is
            none, or the layout cannot work.
        DataError: the run's tokenizer is damaged.
        DeviceError, MetricsError: the device is unknown.
    """
    for word in (name, *keys):
        if not isinstance(word, str):
            raise ConfigError(f"{word!r:.80} is no text: plan takes a run's name and keys, 'gqa_1.5B', 'seq_len=4096'")
    for option, count in (("world", world), ("devices_per_node", devices_per_node)):
        if count is not None and (not isinstance(count, Integral) or count < 1):
            raise ConfigError(f"{option}={count!r}: a cluster has 1 accelerator or more, as a whole number")
    config, _ = resolve_run(name, smoke, keys, Path(matrix))
    check_is_no_file(Path(config.output))
    if world is None and device is not None:
        world = devices_per_node or known_device(device).usual_count
    if world is None:
        if devices_per_node is not None:
            raise ConfigError("devices_per_node goes with world=N or device=NAME, like device='H100 SXM'")
        return plan_anywhere(config)
    return make_cluster_plan(config, world, devices_per_node or 8, device)
