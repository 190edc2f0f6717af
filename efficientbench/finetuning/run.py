"""Run a fine-tuning from its examples to its record: model, examples, folder, nodes, ranks."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rich.console import Console

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError, MetricsError
from efficientbench.devices.base import Device
from efficientbench.devices.registry import find_device
from efficientbench.finetuning.base_model import find_model
from efficientbench.finetuning.complete import folder_of, folder_of_repeat, is_complete, trains_the_same, with_seeds
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.finetuning.examples.examples import write_examples
from efficientbench.finetuning.job import TuningJob
from efficientbench.finetuning.prepare import Prepared, prepare
from efficientbench.finetuning.record import Recording
from efficientbench.launchers.network.cluster_env import Cluster
from efficientbench.launchers.network.interfaces import check_interfaces
from efficientbench.launchers.network.node_link import NodeLink
from efficientbench.launchers.processes.failure import Failure
from efficientbench.launchers.processes.launch import launch
from efficientbench.launchers.processes.worker_process import module_command
from efficientbench.metrics.analysis.repeats import group_repeats
from efficientbench.metrics.monitoring.meters import find_meters
from efficientbench.metrics.records.record import read_record, write_record
from efficientbench.metrics.records.sinks.wandb_log import check_wandb
from efficientbench.metrics.report.comparison import print_spread
from efficientbench.metrics.report.headline import print_results
from efficientbench.running.errors import USERS_MISTAKES
from efficientbench.running.failures import NO_RECORD, FailureFiles, users_mistake, write_failure
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.run import connected
from efficientbench.training.checkpoints.manifest import (
    MANIFEST,
    complete,
    find_good,
    read_manifest,
    remove_partial,
    set_damaged_aside,
)


def run_repeats(config: FinetuneConfig, mode: str, repeats: int, fresh: bool = False) -> int:
    """Train, measure and record `config` with consecutive seeds; return the first exit code that is not 0.

    Repeats differ in the seeds of new weights and of the order; the held-out examples are the same. A repeat whose
    folder holds the complete record of the same configuration is skipped.

    Raises:
        ConfigError, DeviceError, DataError, LaunchError, MetricsError: see `finetune`.
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
        # Only the first node has the records, which it may write after this process has ended.
        return 0
    for group in group_repeats(read_record(folder.record) for folder in folders):
        print_spread(group, Console())
    return 0


def finetune(config: FinetuneConfig, mode: str, folder: OutputFolder | None = None, fresh: bool = False) -> int:
    """Train, measure and record `config`; return the exit code.

    Resume an unfinished earlier attempt from its newest intact checkpoint.

    Args:
        config: the run's configuration.
        mode: `dsw`: this machine alone; `dlc`: the nodes that the environment variables describe.
        folder: the run's folder; None: the folder of its name.
        fresh: start at step 1, even if there is a checkpoint.

    Raises:
        ConfigError, DeviceError, DataError, LaunchError, MetricsError: the run cannot start; nothing has trained.
    """
    cluster = Cluster.from_environment(os.environ) if mode == "dlc" else None
    check_interfaces(os.environ, cluster)
    check_wandb(config.wandb)
    find_meters(config.measurement.meters)
    device = find_device(config.device)
    for name, value in device.environment(1).items():
        os.environ.setdefault(name, value)
    if device.type == "cpu":
        # Else DeepSpeed would warn in this process, too, that it finds no accelerator.
        os.environ["DS_ACCELERATOR"] = "cpu"
    device.check(config.training.dtype)
    if device.type == "cpu" and config.training.dtype == "bf16" and config.zero.stage:
        raise ConfigError(
            "training.dtype: transformers refuses bf16 with DeepSpeed on CPUs: take fp32, or zero.stage=0"
        )
    nodes, node = (cluster.nodes, cluster.node_rank) if cluster is not None else (1, 0)
    ranks = config.cpu_ranks if device.memory_capacity_bytes() is None else device.count()
    model = find_model(config.model, Path(config.cache))
    prepared = prepare(config, model, nodes * ranks)
    folder = folder or folder_of(config)
    with folder.claimed() if node == 0 else contextlib.nullcontext():
        try:
            with connected(cluster, device, folder) as link:
                job = prepare_job(config, prepared, model, nodes, ranks, folder, link, fresh)
                if node == 0:
                    _announce(job, prepared, device)
                exit_code = _launch_ranks(job, device, cluster, link, ranks)
                if node == 0 and not exit_code:
                    _print_summary(folder)
                return exit_code
        except USERS_MISTAKES as error:
            if node == 0:
                write_failure(folder, users_mistake(error))
            raise


def prepare_job(
    config: FinetuneConfig,
    prepared: Prepared,
    model: str,
    nodes: int,
    ranks: int,
    folder: OutputFolder,
    link: NodeLink,
    fresh: bool,
) -> TuningJob:
    """Prepare the folder, write this node's examples and job, and return the job."""
    first = link.node == 0
    resume = None
    if first:
        try:
            remove_partial(folder.path)
            resume = None if fresh else _resumable(folder, config, prepared, nodes * ranks)
            if resume is None:
                folder.set_aside()
        except OSError as error:
            raise folder.unwritable(error) from None
    else:
        link.wait_for("prepared", [0])
        # The first node has decided from which checkpoint all nodes resume.
        resume = TuningJob.read(folder.config).resume
    suffix = "" if first else f"_node{link.node}"
    examples = folder.path / f"examples{suffix}.npz"
    job = TuningJob(
        config,
        folder.path,
        nodes,
        nodes * ranks,
        model,
        examples,
        prepared.fingerprint,
        prepared.steps,
        prepared.warmup,
        prepared.order.record,
        prepared.data,
        resume,
        prepared.held_out_too_long,
    )
    try:
        write_examples(examples, prepared.train, prepared.held_out, prepared.order.order, prepared.held_out_levels)
    except OSError as error:
        raise folder.unwritable(error) from None
    job.write(folder.path / f"config{suffix}.json")
    if first:
        link.send("prepared")
    return job


def _resumable(folder: OutputFolder, config: FinetuneConfig, prepared: Prepared, world: int) -> Path | None:
    """Return the newest intact checkpoint of an unfinished attempt at this run; None if there is none.

    Name newer, damaged checkpoints, and set them aside.

    Raises ConfigError: the checkpoint is of another configuration or other examples, or of another number of ranks; or
        all checkpoints are of a version that wrote no manifests.
    """
    with contextlib.suppress(MetricsError):
        if folder.record.is_file() and read_record(folder.record).status == "completed":
            return None
    found = complete(folder.path)
    # An update of the program must not make a training begin anew unasked.
    if found and not any(os.path.lexists(each / MANIFEST) for each in found):
        raise ConfigError(
            f"{found[-1]}: has no {MANIFEST}, as checkpoints of an earlier version, from which this one does not "
            "resume: --fresh begins anew, label=NAME takes another folder"
        )
    newest, problems = find_good(folder.path)
    for problem in problems:
        print(f"passed over: {problem}", flush=True)
    if newest is None:
        return None
    earlier = read_manifest(newest)
    if (ranks := earlier.layout.get("world")) != world:
        raise ConfigError(
            f"{folder.path} holds checkpoints of {number_of(ranks, 'rank') if isinstance(ranks, int) else 'a training'}"
            f", and this run has {world}: start as many, because each keeps its part of the optimizer, or --fresh "
            "begins anew"
        )
    if earlier.data != [prepared.fingerprint] or not trains_the_same(earlier.config, config):
        raise ConfigError(
            f"{folder.path} holds checkpoints of another configuration or of other examples: --fresh begins anew, "
            "label=NAME takes another folder"
        )
    set_damaged_aside(folder.path, newest)
    return newest


def _announce(job: TuningJob, prepared: Prepared, device: Device) -> None:
    config, record = job.config, prepared.order.record
    print(
        f"{config.name}: {job.model}, {len(prepared.train):,} examples, {len(prepared.held_out):,} held out, "
        f"{number_of(job.steps, 'step')} of {config.training.global_batch_size}, {config.training.dtype}\n"
        f"{number_of(job.world, 'rank')} on {device.names()[0]}, ZeRO-{config.zero.stage}; "
        f"order: {record.used}"
    )
    for kind, count in (("", prepared.data.too_long), ("held-out ", prepared.held_out_too_long)):
        if count:
            treated = f"data.too_long={config.data.too_long}"
            print(f"{number_of(count, f'{kind}example')} of more than {config.data.max_length:,} tokens ({treated})")
    for warning in prepared.order.warnings:
        print(f"warning: {warning}")
    if job.resume is not None:
        print(f"goes on from {job.resume}")
    print(end="", flush=True)


def _launch_ranks(job: TuningJob, device: Device, cluster: Cluster | None, link: NodeLink, ranks: int) -> int:
    """Start this node's ranks, and wait until they have ended; return the exit code of the run."""
    folder, recording = OutputFolder(job.output), Recording(job, device)

    def write_files(failure: Failure) -> None:
        if link.node:
            return
        FailureFiles(folder).write(failure)
        if failure.kind not in NO_RECORD and not folder.record.exists():
            reason = f"the run failed ({failure.kind.replace('_', ' ')}): {failure.reason}"
            with contextlib.suppress(MetricsError):
                write_record(recording.failed(reason), folder.record)

    job_file = folder.config if link.node == 0 else folder.path / f"config_node{link.node}.json"
    return launch(
        module_command("efficientbench.finetuning.rank", str(job_file)),
        ranks,
        cluster,
        folder.log,
        job.config.faults.stop_grace_s,
        on_failure=write_files,
        link=link,
        hang_limit_s=job.config.faults.hang_limit_s,
    )


def _print_summary(folder: OutputFolder) -> None:
    console = Console()
    console.print()
    record = read_record(folder.record)
    print_results([record], console)
    held_out = record.finetuning["held_out"]
    console.print(f"held-out loss {held_out[0]['loss']:.4f} before, {held_out[-1]['loss']:.4f} after", highlight=False)
    for name in ("adapter", "model"):
        if (folder.path / name).is_dir():
            console.print(f"{name:<12} {folder.path / name}", highlight=False, soft_wrap=True)
    console.print(f"record       {folder.record}", highlight=False, soft_wrap=True)
