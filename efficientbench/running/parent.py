"""The parent process of a run, for pretraining and fine-tuning alike: folder, nodes, text, ranks, failure, results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.language import in_users_language
from efficientbench.launchers.network.connectivity import check_connectivity
from efficientbench.launchers.network.interfaces import hccl_address, hccl_port
from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.network.preflight import preflight
from efficientbench.launchers.network.secret import shared_secret
from efficientbench.launchers.processes.failure import Failure
from efficientbench.metrics.analysis.repeats import group_repeats
from efficientbench.metrics.records.other_layers import named_by_layers
from efficientbench.metrics.records.record import RECORD_NAME, RunRecord, read_record
from efficientbench.metrics.records.stored import SKIPPED_FOLDERS
from efficientbench.metrics.report.comparison import print_spread
from efficientbench.metrics.report.headline import print_results
from efficientbench.running.errors import USERS_MISTAKES
from efficientbench.running.failures import FailureFiles, users_mistake
from efficientbench.running.kind import Config, Job, Kind, Planned, Prepared, Site, find_site, with_seeds
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.ranks import run_ranks
from efficientbench.running.resume import prepare_folder


def perform(kind: Kind[Config, Planned, Prepared, Job], config: Config, site: Site, fresh: bool) -> int:
    """Train, measure and record a run; return the exit code.

    A run that an earlier attempt did not complete resumes from its newest intact checkpoint; with `fresh` it starts at
    step 1.

    Raises:
        ConfigError, DeviceError, DataError, LaunchError, MetricsError: a mistake of the user, before anything trains.
    """
    planned = kind.plan(config, site)
    files = FailureFiles(site.folder) if site.is_first else None
    # The first node's process locks the folder for all nodes.
    with site.folder.claimed() if site.is_first else contextlib.nullcontext():
        try:
            with connected(site) as link:
                prepared = kind.prepare(planned)
                job, job_file = _write_job(kind, prepared, site.folder, link, fresh)
                exit_code = _launch_ranks(kind, job, job_file, site, link, files)
                if site.is_first and site.folder.record.exists():
                    _print_summary(kind, site)
                return exit_code
        except USERS_MISTAKES as error:
            failure = users_mistake(error)
            # A mistake that is found before a rank starts is no attempt, which reports would show as a failed run.
            if files is not None and failure.kind != "mistake":
                files.write(failure)
            raise


def perform_repeats(
    kind: Kind[Config, Planned, Prepared, Job],
    config: Config,
    mode: str,
    repeats: int,
    again: bool = False,
    fresh: bool = False,
) -> int:
    """Perform runs with consecutive seeds, each in a folder below the run's; return the first exit code that is not 0.

    The first repeat has the configured seed. A repeat whose folder holds its complete record is skipped, so that the
    same command resumes an interrupted series.

    Args:
        kind: the kind of the runs.
        config: the configuration of the first repeat.
        mode: `dsw` or `dlc`, see `find_site`.
        repeats: the number of repeats, 1 or more.
        again: whether complete repeats are trained again; their records then move to `previous/`.
        fresh: whether interrupted repeats start at step 1 instead of resuming from their last checkpoint.

    Raises:
        ConfigError, DeviceError, DataError, LaunchError, MetricsError: as `perform` does.
    """
    configs = [with_seeds(config, kind.seeds, index) for index in range(repeats)]
    sites = [find_site(each, mode, OutputFolder.of_repeat(each)) for each in configs]
    # Decided for all repeats before any trains: the nodes share these folders and must decide alike.
    kept = [not again and kind.is_complete(each, site) for each, site in zip(configs, sites, strict=True)]
    print(in_users_language(f"the repeats vary {kind.varied(config)}"), flush=True)
    for number, (each, site, done) in enumerate(zip(configs, sites, kept, strict=True), start=1):
        state = f"complete, kept ({site.folder.record})" if done else "trains"
        line = f"repeat {number} of {repeats}, seed {each.training.seed}: {state}"
        print(in_users_language(line), flush=True)
        if not done and (exit_code := perform(kind, each, site, fresh)):
            return exit_code
    if not sites[0].is_first:
        # Only the first node has the records, perhaps after this process has ended.
        return 0
    for group in group_repeats(_named(site.folder) for site in sites):
        print_spread(group, Console())
    return 0


@contextlib.contextmanager
def connected(site: Site) -> Iterator[NodeLink]:
    """Wait for all nodes, check that they reach each other as the ranks will, and yield the link between them.

    Set the environment variable that HCCL needs; the ranks inherit it.
    """
    cluster = site.cluster
    if cluster is None or cluster.nodes == 1:
        yield NodeLink(0, 1, {})
        return
    variable = site.device.address_variable
    address, port = (None, None) if variable is None else (hccl_address(os.environ), hccl_port(os.environ))
    if not cluster.secret:
        cluster = replace(cluster, secret=shared_secret(site.folder.path.parent))
    with preflight(cluster) as link:
        reached = check_connectivity(cluster, link, address, port)
        if variable is not None and address is None:
            # By itself HCCL takes the first interface by name, which may lead elsewhere.
            os.environ[variable] = reached
        yield link


def _write_job(
    kind: Kind[Config, Planned, Prepared, Job], prepared: Prepared, folder: OutputFolder, link: NodeLink, fresh: bool
) -> tuple[Job, Path]:
    """Prepare the folder, and write this node's job; return the job and its file."""
    first = link.node == 0
    # After all checks that refuse a run: a user's mistake must leave an earlier run's files where they are.
    resume = None
    if first:
        resume = prepare_folder(folder, partial(kind.usable, prepared, folder), partial(kind.is_same, prepared), fresh)
    try:
        # On a file system that is not shared, or late to show it, the first node's folder is not here.
        folder.path.mkdir(parents=True, exist_ok=True)
        job = kind.job(prepared, folder, link.node, resume)
    except OSError as error:
        raise folder.unwritable(error) from None
    job_file = folder.config if first else folder.path / f"config_node{link.node}.json"
    job.write(job_file)
    # The first node moves an earlier run's files to `previous/`: in a shared folder it must not find this run's logs.
    if first:
        link.send("prepared")
    else:
        link.wait_for("prepared", [0])
    return job, job_file


def _launch_ranks(
    kind: Kind[Config, Planned, Prepared, Job],
    job: Job,
    job_file: Path,
    site: Site,
    link: NodeLink,
    files: FailureFiles | None,
) -> int:
    """Run this node's ranks to their end; return the exit code of the whole run.

    `files` writes the files of a failed run; None on every node but the first.
    """

    def write_files(failure: Failure) -> None:
        if files is not None:
            files.write(failure)
            files.write_record(failure, partial(kind.described, job, site.device, link.nodes))

    faults, log = job.config.faults, site.folder.log
    return run_ranks(kind.worker, job_file, job.ranks_per_node, log, faults, site.cluster, link, write_files)


def _print_summary(kind: Kind[Config, Planned, Prepared, Job], site: Site) -> None:
    console, folder = Console(), site.folder
    record = _named(folder)
    console.print()
    print_results([record], console)
    # A suite's report skips traced runs: such a run is reported from its own folder.
    suite = _as_typed(folder.path if folder.path.name in SKIPPED_FOLDERS else folder.path.parent)
    lines: Sequence[str] = (
        *kind.results(record, folder),
        f"record       {_as_typed(folder.record)}",
        f"steps        {_as_typed(folder.steps)}",
        f"logs         {_as_typed(folder.log)}",
        f"TensorBoard  tensorboard --logdir {suite}",
        f"compare      efficientbench report {suite}",
        *_asked_to_share(record, site),
    )
    console.print("\n".join(map(in_users_language, lines)), highlight=False, soft_wrap=True)


def _named(folder: OutputFolder) -> RunRecord:
    """Return a run's record, with the name that reports give it."""
    record = read_record(folder.record)
    return named_by_layers(record, record.config)


def _asked_to_share(record: RunRecord, site: Site) -> list[str]:
    """Return what asks for the record of a first complete run on devices that this project never had."""
    folder = site.folder
    if site.device.tried or record.status != "completed":
        return []
    for path in folder.path.parent.glob(f"*/{RECORD_NAME}"):
        with contextlib.suppress(MetricsError):
            if path != folder.record and read_record(path).device_name == record.device_name:
                return []
    return [
        "",
        f"No training on {site.device.type} is known to this project yet. This packs record, doctor and logs, without "
        "paths and texts, to be shared:",
        f"  efficientbench share {_as_typed(folder.path)}",
    ]


def _as_typed(path: Path) -> str:
    """Return the path as the user would type it from the current folder."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
