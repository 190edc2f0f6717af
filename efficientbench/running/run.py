"""One run from its configuration to its record: checks, data, ranks, report."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from efficientbench.config.errors import ConfigError
from efficientbench.config.layout import Layout, fit_micro_batch
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.manifest import Corpus
from efficientbench.devices.base import Device
from efficientbench.devices.registry import find_device
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.connectivity import check_connectivity
from efficientbench.launchers.network.interfaces import check_interfaces, hccl_address, hccl_port
from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.network.preflight import preflight
from efficientbench.launchers.processes.failure import Failure
from efficientbench.launchers.processes.launch import launch
from efficientbench.launchers.processes.worker_process import module_command
from efficientbench.metrics.cgroup import memory_limit_bytes
from efficientbench.metrics.records.record import SKIPPED_FOLDERS, read_record
from efficientbench.metrics.report.headline import print_results
from efficientbench.planning.plan import Hardware, Plan, check_fits, gigabytes, make_plan, with_kernels
from efficientbench.running.corpora import prepare_corpora
from efficientbench.running.errors import is_users_mistake
from efficientbench.running.failures import FailureFiles, users_mistake
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.resume import prepare_folder


def run(config: RunConfig, mode: str, folder: OutputFolder | None = None, fresh: bool = False) -> int:
    """Train, measure and record `config`; returns the exit code.

    A run that an earlier attempt did not bring to its end goes on from its last good checkpoint.

    Args:
        config: the run.
        mode: `dsw`, this machine alone, or `dlc`, the nodes that the environment describes.
        folder: where the run writes; None: the folder of its name.
        fresh: begin anew, whatever checkpoint there is.

    Raises:
        ConfigError, DeviceError, DataError, LaunchError, MetricsError: for the user, before anything trains.
    """
    cluster = Cluster.from_environment(os.environ) if mode == "dlc" else None
    check_interfaces(os.environ, cluster)
    device = find_device(config.device)
    for name, value in device.environment.items():
        # For the ranks, which inherit them.
        os.environ.setdefault(name, value)
    plan = plan_on(config, device, cluster.nodes if cluster else 1)
    device.check(config.training.dtype)
    if plan.config.training != config.training:
        print(
            f"micro-batch {plan.config.training.micro_batch_size} instead of {config.training.micro_batch_size}: "
            f"{plan.layout.dp} replicas share a global batch of {config.training.global_batch_size}"
        )
    _announce(plan, device)
    folder = folder or OutputFolder.of(plan.config)
    node = cluster.node_rank if cluster is not None else 0
    files = FailureFiles(folder) if node == 0 else None
    # The first node's parent holds the folder for all.
    with folder.claimed() if node == 0 else contextlib.nullcontext():
        try:
            with _meet(cluster, device) if cluster is not None else NodeLink(0, 1, {}) as link:
                return _train(plan, device, folder, cluster, link, files, fresh)
        except Exception as error:
            if files is not None and is_users_mistake(error):
                files.write(users_mistake(error))
            raise


def _train(
    plan: Plan,
    device: Device,
    folder: OutputFolder,
    cluster: Cluster | None,
    link: NodeLink,
    files: FailureFiles | None,
    fresh: bool,
) -> int:
    """This node's part of the run in its folder.

    Args:
        plan, device, folder: of the run.
        cluster: the nodes; None: this machine alone.
        link: to the launchers of the other nodes.
        files: what the first node leaves where the run fails; None on the others.
        fresh: begin anew, whatever checkpoint there is.
    """
    config, node = plan.config, link.node
    corpora = prepare_corpora(config)
    _announce_data(config, corpora)
    tokens = [corpus.fingerprint for corpus in corpora]
    # Last of what may be refused: a mistake must leave an earlier run as it lies there.
    resume = prepare_folder(folder, config, tokens, fresh) if node == 0 else None
    job_file = folder.path / ("config.json" if node == 0 else f"config_node{node}.json")
    manifests = tuple(corpus.manifest for corpus in corpora)
    job = Job(config, plan.layout, plan.budget, manifests, folder.path, resume)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        job.write(job_file)
    except OSError as error:
        raise ConfigError(f"output: {job_file} cannot be written: {error.strerror}") from None
    # Where the nodes share the folder, what another one wrote before would be set aside with the earlier run's files.
    if node == 0:
        link.send("prepared")
    else:
        link.wait_for("prepared", [0])
    command = module_command("efficientbench.worker", str(job_file))

    def write_files(failure: Failure) -> None:
        if files is not None:
            files.write(failure)
            files.write_record(failure, job, device, link.nodes)

    exit_code = launch(
        command,
        plan.layout.ranks_per_node,
        cluster,
        folder.log,
        config.faults.stop_grace_s,
        on_failure=write_files,
        link=link,
        hang_limit_s=config.faults.hang_limit_s,
    )
    # A rank that was killed leaves the cursor as its display had it: hidden.
    Console().show_cursor()
    if node == 0 and folder.record.exists():
        _show(folder)
    return exit_code


def _meet(cluster: Cluster, device: Device) -> NodeLink:
    """Wait for all nodes, and check that they reach each other as the ranks will; the ranks inherit what that takes.

    Returns the link between the nodes' launchers.
    """
    ascend = cluster.nodes > 1 and device.telemetry == "ascend"
    address, port = (hccl_address(os.environ), hccl_port(os.environ)) if ascend else (None, None)
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(preflight(cluster))
        if cluster.nodes > 1:
            reached = check_connectivity(cluster, link, address, port)
            if ascend and address is None:
                # By itself HCCL takes the first interface by name, which may lead elsewhere.
                os.environ["HCCL_IF_IP"] = reached
        stack.pop_all()
    return link


def plan_on(config: RunConfig, device: Hardware, nodes: int) -> Plan:
    """The plan of a run on this machine's devices; its micro-batch may be smaller than the configured one.

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


def _announce(plan: Plan, device: Device) -> None:
    layout = plan.layout
    print(
        f"{plan.config.name}: {plan.parameters.total:,} parameters, {plan.budget.steps:,} steps of "
        f"{plan.budget.tokens_per_step:,} tokens, {plan.config.training.dtype}\n"
        f"{layout.world_size} rank{'s' if layout.world_size > 1 else ''} (tp {layout.tp}, pp {layout.pp}, "
        f"dp {layout.dp}) on {device.names()[0]}; about {gigabytes(plan.rank_memory_bytes())} each"
    )
    warning = device.dtype_warning(plan.config.training.dtype)
    if warning is not None:
        print(f"warning: {warning}")
    if plan.budget.extended:
        print(plan.budget.extended)
    sys.stdout.flush()


def _announce_data(config: RunConfig, corpora: Sequence[Corpus]) -> None:
    for weight, corpus in zip(config.data.weights, corpora, strict=True):
        share = f"{weight:.3g} of the samples: " if len(corpora) > 1 else ""
        print(f"data: {share}{corpus.source}, {corpus.documents:,} documents, {corpus.tokens:,} tokens")
    sys.stdout.flush()


def _show(folder: OutputFolder) -> None:
    console = Console()
    console.print()
    print_results([read_record(folder.record)], console)
    # What reports of the suite leave out, as a traced run, is reported alone.
    suite = _shown(folder.path if folder.path.name in SKIPPED_FOLDERS else folder.path.parent)
    console.print(f"record       {_shown(folder.record)}", highlight=False, soft_wrap=True)
    console.print(f"steps        {_shown(folder.steps)}", highlight=False, soft_wrap=True)
    console.print(f"logs         {_shown(folder.log)}", highlight=False, soft_wrap=True)
    console.print(f"TensorBoard  tensorboard --logdir {suite}", highlight=False, soft_wrap=True)
    console.print(f"compare      efficientbench report {suite}", highlight=False, soft_wrap=True)


def _shown(path: Path) -> str:
    """The path as the user would type it from here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
