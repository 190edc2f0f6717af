"""Run one configuration from its plan to its record: plan, folder, nodes, data, ranks, results."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from efficientbench.architecture.variant import known, shown
from efficientbench.basics.cgroup import memory_limit_bytes
from efficientbench.basics.counted import number_of
from efficientbench.config.layout import Layout, fit_micro_batch
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.manifest import Corpus
from efficientbench.devices.base import Device
from efficientbench.devices.registry import find_device
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.connectivity import check_connectivity
from efficientbench.launchers.network.interfaces import check_interfaces, hccl_address, hccl_port
from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.network.preflight import preflight
from efficientbench.launchers.network.secret import shared_secret
from efficientbench.launchers.processes.failure import Failure
from efficientbench.launchers.processes.launch import launch
from efficientbench.launchers.processes.worker_process import module_command
from efficientbench.metrics.monitoring.meters import find_meters
from efficientbench.metrics.records.record import read_record
from efficientbench.metrics.records.sinks.wandb_log import check_wandb
from efficientbench.metrics.records.stored import SKIPPED_FOLDERS
from efficientbench.metrics.report.headline import print_results
from efficientbench.planning.fitting import check_fits
from efficientbench.planning.plan import (
    Hardware,
    Plan,
    determinism,
    gigabytes,
    hidden,
    make_plan,
    text_budget,
    with_kernels,
)
from efficientbench.running.corpora import check_length, prepare_corpora
from efficientbench.running.epochs import counted
from efficientbench.running.errors import USERS_MISTAKES
from efficientbench.running.failures import FailureFiles, users_mistake
from efficientbench.running.initialisation import check_other_folder, check_tokenizer, initialised
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.resume import prepare_folder


def run(config: RunConfig, mode: str, folder: OutputFolder | None = None, fresh: bool = False) -> int:
    """Train, measure and record `config`; return the exit code.

    A run that an earlier attempt did not complete resumes from its newest intact checkpoint.

    Args:
        config: the run's configuration.
        mode: `dsw`: this machine alone; `dlc`: the nodes that the environment variables describe.
        folder: the folder to write to; None: `OutputFolder.of` the configuration.
        fresh: start at step 1, whatever checkpoint there is.

    Raises:
        ConfigError, DeviceError, DataError, LaunchError, MetricsError: a mistake of the user, before anything trains.
    """
    cluster = Cluster.from_environment(os.environ) if mode == "dlc" else None
    check_interfaces(os.environ, cluster)
    check_wandb(config.wandb)
    find_meters(config.measurement.meters)
    config = initialised(config)
    device = find_device(config.device)
    settings = dict(device.environment(config.parallel.tp))
    if config.training.deterministic:
        settings |= {name: values[0] for name, values in device.deterministic_environment().items()}
    for name, value in settings.items():
        # For the ranks, which inherit this process's environment.
        os.environ.setdefault(name, value)
    plan = plan_on(config, device, cluster.nodes if cluster else 1)
    device.check(config.training.dtype)
    _announce(plan, config.training.micro_batch_size, device)
    # From here on `plan.config` is the run's configuration, on every node and in every rank.
    folder = folder or OutputFolder.of(plan.config)
    check_other_folder(plan.config, folder)
    node = cluster.node_rank if cluster is not None else 0
    files = FailureFiles(folder) if node == 0 else None
    # The first node's process locks the folder for all nodes.
    with folder.claimed() if node == 0 else contextlib.nullcontext():
        try:
            with connected(cluster, device, folder) as link:
                corpora = prepare_corpora(plan.config)
                check_tokenizer(plan.config, corpora)
                plan = counted(plan, corpora)
                check_length(plan.config, plan.budget, corpora, memory_limit_bytes())
                _announce_data(plan, corpora)
                job, job_file = _prepare_job(plan, corpora, folder, link, fresh)
                exit_code = _launch_ranks(job, job_file, device, cluster, link, files)
                if node == 0 and folder.record.exists():
                    _print_summary(folder)
                return exit_code
        except USERS_MISTAKES as error:
            if files is not None:
                files.write(users_mistake(error))
            raise


def plan_on(config: RunConfig, device: Hardware, nodes: int) -> Plan:
    """Return the plan of a run on this machine's devices.

    The plan's `config` is `config` with its micro-batch fitted to the devices and its kernels chosen for them.

    Raises:
        ConfigError: a layout that cannot work, a budget too small to measure, or a run that cannot fit in memory.
    """
    capacity_bytes = device.memory_capacity_bytes()
    shared = capacity_bytes is None
    if not shared:
        config = fit_micro_batch(config, device.count(), nodes)
    config = with_kernels(config, device)
    layout = Layout.of(config, device.count(), nodes, oversubscribe=shared)
    plan = make_plan(config, layout, device.runtime_bytes)
    check_fits(plan, memory_limit_bytes() if capacity_bytes is None else capacity_bytes, shared)
    return plan


@contextlib.contextmanager
def connected(cluster: Cluster | None, device: Device, folder: OutputFolder) -> Iterator[NodeLink]:
    """Wait for all nodes, check that they reach each other as the ranks will, and yield the link between them.

    Set the environment variable that HCCL needs; the ranks inherit it.
    """
    if cluster is None or cluster.nodes == 1:
        yield NodeLink(0, 1, {})
        return
    variable = device.address_variable
    address, port = (None, None) if variable is None else (hccl_address(os.environ), hccl_port(os.environ))
    if not cluster.secret:
        cluster = replace(cluster, secret=shared_secret(folder.path.parent))
    with preflight(cluster) as link:
        reached = check_connectivity(cluster, link, address, port)
        if variable is not None and address is None:
            # By itself HCCL takes the first interface by name, which may lead elsewhere.
            os.environ[variable] = reached
        yield link


def _prepare_job(
    plan: Plan, corpora: Sequence[Corpus], folder: OutputFolder, link: NodeLink, fresh: bool
) -> tuple[Job, Path]:
    """Prepare the folder, and write this node's job file; return the job and its file."""
    first = link.node == 0
    # After all checks that refuse a run: a user's mistake must leave an earlier run's files where they are.
    fingerprints = [corpus.fingerprint for corpus in corpora]
    resume = prepare_folder(folder, plan.config, fingerprints, fresh) if first else None
    if first:
        folder.keep_tokenizer(corpora[0].tokenizer_folder)
    manifests = tuple(corpus.manifest.absolute() for corpus in corpora)
    fingerprint = corpora[0].tokenizer_fingerprint
    job = Job(plan.config, plan.layout, plan.budget, manifests, folder.path, resume, tokenizer_fingerprint=fingerprint)
    job_file = folder.config if first else folder.path / f"config_node{link.node}.json"
    job.write(job_file)
    # The first node moves an earlier run's files to `previous/`: in a shared folder it must not find this run's logs.
    if first:
        link.send("prepared")
    else:
        link.wait_for("prepared", [0])
    return job, job_file


def _launch_ranks(
    job: Job, job_file: Path, device: Device, cluster: Cluster | None, link: NodeLink, files: FailureFiles | None
) -> int:
    """Run this node's ranks to their end; return the exit code of the whole run.

    Args:
        job: the run's job.
        job_file: the file of the job, which is the ranks' argument.
        device: the device type that they train on.
        cluster: the nodes; None: this machine alone.
        link: the link to the launchers of the other nodes.
        files: writes the files of a failed run; None on every node but the first.
    """

    def write_files(failure: Failure) -> None:
        if files is not None:
            files.write(failure)
            files.write_record(failure, job, device, link.nodes)

    exit_code = launch(
        module_command("efficientbench.worker", str(job_file)),
        job.layout.ranks_per_node,
        cluster,
        OutputFolder(job.output).log,
        job.config.faults.stop_grace_s,
        on_failure=write_files,
        link=link,
        hang_limit_s=job.config.faults.hang_limit_s,
    )
    # A rank that is killed leaves the cursor hidden, as its progress bar had it.
    Console().show_cursor()
    return exit_code


def _announce(plan: Plan, micro_batch_size: int, device: Device) -> None:
    """Print what will run and where; `micro_batch_size` is the one that the user wrote."""
    layout, training = plan.layout, plan.config.training
    if training.micro_batch_size != micro_batch_size:
        print(
            f"micro-batch {training.micro_batch_size} instead of {micro_batch_size}: "
            f"{layout.dp} replicas share a global batch of {training.global_batch_size}"
        )
    parameters = known(lambda: f"{plan.parameters.total:,}") or "n/a"
    memory = shown(lambda: f"about {gigabytes(plan.rank_memory_bytes())} each")
    print(
        f"{plan.config.name}: {parameters} parameters, {plan.length} of "
        f"{plan.budget.tokens_per_step:,} tokens, {training.dtype}\n"
        f"{number_of(layout.world_size, 'rank')} (tp {layout.tp}, pp {layout.pp}, "
        f"dp {layout.dp}) on {device.names()[0]}; {memory}"
    )
    init = plan.config.init
    if init.run is not None:
        print(f"begins with the weights of {init.run} after step {init.step} (SHA-256 {init.sha256})")
    warning = device.dtype_warning(training.dtype)
    if warning is not None:
        print(f"warning: {warning}")
    if not_shown := hidden(plan.config):
        print(f"warning: {not_shown}")
    if promised := determinism(plan.config, device):
        print(promised)
    if plan.budget.extended:
        print(plan.budget.extended)
    sys.stdout.flush()


def _announce_data(plan: Plan, corpora: Sequence[Corpus]) -> None:
    for weight, corpus in zip(plan.config.data.weights, corpora, strict=True):
        share = f"{weight:.3g} of the samples: " if len(corpora) > 1 else ""
        print(f"data: {share}{corpus.source}, {number_of(corpus.documents, 'document')}, {corpus.tokens:,} tokens")
    if plan.config.training.epochs is not None:
        print(f"training.epochs={plan.config.training.epochs}: {plan.length}")
    print(text_budget(plan, [corpus.tokens for corpus in corpora]))
    if plan.config.training.objective == "sft":
        most = plan.config.training.seq_len + 1
        too_long = int((IndexedDocuments(corpora[0].prefix).lengths() > most).sum())
        print(f"conversations are packed whole: {too_long:,} of more than {most:,} tokens are left out")
    sys.stdout.flush()


def _print_summary(folder: OutputFolder) -> None:
    console = Console()
    console.print()
    print_results([read_record(folder.record)], console)
    # A suite's report skips traced runs: such a run is reported from its own folder.
    suite = _as_typed(folder.path if folder.path.name in SKIPPED_FOLDERS else folder.path.parent)
    lines = (
        f"record       {_as_typed(folder.record)}",
        f"steps        {_as_typed(folder.steps)}",
        f"logs         {_as_typed(folder.log)}",
        f"TensorBoard  tensorboard --logdir {suite}",
        f"compare      efficientbench report {suite}",
    )
    console.print("\n".join(lines), highlight=False, soft_wrap=True)


def _as_typed(path: Path) -> str:
    """Return the path as the user would type it from the current folder."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
