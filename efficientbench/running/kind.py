"""The stages of a run, each a frozen value that one place makes, and how pretraining and fine-tuning differ in them.

From the configuration as the user wrote it, and the site where the run takes place, follow:

planned    the configuration with all that was decided for these devices: every later stage reads this one
prepared   the text or examples, and how many steps read them
job        what the ranks need, which they read from a file
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from efficientbench.devices.base import Device
from efficientbench.devices.registry import find_device
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.interfaces import check_interfaces
from efficientbench.metrics.monitoring.meters import find_meters
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.sinks.registry import asked_of, check_sinks
from efficientbench.running.job import AnyJob
from efficientbench.running.output_folder import OutputFolder, Settings

Config = TypeVar("Config", bound=Settings)
Planned = TypeVar("Planned")
Prepared = TypeVar("Prepared")
Job = TypeVar("Job", bound=AnyJob)


@dataclass(frozen=True)
class Site:
    """Where a run takes place."""

    device: Device
    cluster: Cluster | None
    """The nodes; None: this machine alone."""
    folder: OutputFolder

    @property
    def nodes(self) -> int:
        return 1 if self.cluster is None else self.cluster.nodes

    @property
    def is_first(self) -> bool:
        """Whether this is the first node, whose process writes the run's files for all nodes."""
        return self.cluster is None or self.cluster.node_rank == 0


def find_site(config: Settings, mode: str, folder: OutputFolder | None = None) -> Site:
    """Return where the run that a user asks for takes place: on the devices and nodes that are here.

    Args:
        config: the run's configuration.
        mode: `dsw`: this machine alone; `dlc`: the nodes that the environment variables describe.
        folder: the folder to write to; None: `OutputFolder.of` the configuration.

    Raises ConfigError, DeviceError, LaunchError, MetricsError: nodes, network, device or sink cannot be used.
    """
    cluster = Cluster.from_environment(os.environ) if mode == "dlc" else None
    check_interfaces(os.environ, cluster)
    check_sinks(asked_of(config))
    find_meters(config.measurement.meters)
    return Site(find_device(config.device), cluster, folder or OutputFolder.of(config))


def with_seeds(config: Config, seeds: Sequence[str], index: int) -> Config:
    """Return the configuration of the repeat number `index`, from 0, whose seeds (by their keys) are larger by it."""
    for key in seeds:
        part, _, name = key.partition(".")
        config = config.changed(part, **{name: getattr(getattr(config, part), name) + index})
    return config


def set_for_ranks(settings: Mapping[str, str]) -> None:
    """Set environment variables, which the ranks inherit; the user's own come first."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)


class Kind(ABC, Generic[Config, Planned, Prepared, Job]):
    """One kind of run: pretraining (with SFT and RL), or the fine-tuning of a transformers model."""

    worker: ClassVar[str]
    """The module whose `rank_work` is the work of the ranks, see `run_ranks`."""
    seeds: ClassVar[tuple[str, ...]] = ("training.seed",)
    """The keys in which repeats of a run differ."""

    def varied(self, config: Config) -> str:
        """Return in words what differs between repeats of a configuration."""
        return " and ".join(self.seeds)

    @abstractmethod
    def plan(self, config: Config, site: Site) -> Planned:
        """Decide everything that follows from configuration and devices, and print it.

        Raises ConfigError, DataError, DeviceError: the run cannot work; nothing has been written.
        """

    @abstractmethod
    def prepare(self, planned: Planned) -> Prepared:
        """Make or find the text, and print it. Raises ConfigError, DataError: it cannot be used."""

    @abstractmethod
    def usable(self, prepared: Prepared, folder: OutputFolder) -> Path | None:
        """Return the newest checkpoint that the run resumes from, and print why newer ones are skipped.

        Raises ConfigError: the checkpoint is another run's, and this kind sets no such run aside.
        """

    @abstractmethod
    def is_same(self, prepared: Prepared, earlier: Mapping[str, Any]) -> bool:
        """Return whether an earlier job's configuration, read from JSON, is one that this run could resume."""

    @abstractmethod
    def job(self, prepared: Prepared, folder: OutputFolder, node: int, resume: Path | None) -> Job:
        """Return the job of a node's ranks, and write what they read besides it. Raises ConfigError, OSError."""

    @abstractmethod
    def described(self, job: Job, device: Device, nodes: int) -> dict[str, Any]:
        """Return what a record says of a job before anything is measured, by the record's field names."""

    @abstractmethod
    def is_complete(self, config: Config, site: Site) -> bool:
        """Return whether the site's folder holds the complete record of this configuration on these devices."""

    def results(self, record: RunRecord, folder: OutputFolder) -> list[str]:
        """Return the lines to print after a run besides those of every run."""
        return []
