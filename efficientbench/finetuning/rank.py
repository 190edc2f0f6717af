"""The work of a fine-tuning's ranks."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efficientbench.basics.errors import TrainingError
from efficientbench.basics.files import beside, complete_folder
from efficientbench.devices.base import Device
from efficientbench.devices.loading import without_collection
from efficientbench.devices.registry import find_device
from efficientbench.finetuning.examples.examples import fingerprint_of, read_examples
from efficientbench.finetuning.job import TuningJob
from efficientbench.finetuning.methods import find_method
from efficientbench.finetuning.zero import allow_cpu_ranks, deepspeed_config
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics.records.record import read_record
from efficientbench.metrics.records.sinks.registry import Run, Sinks, asked_of
from efficientbench.metrics.records.sinks.steplog import StepLog, keep_lost, time_lost
from efficientbench.metrics.records.sinks.tensorboard import cut_logs
from efficientbench.running.failures import diagnose
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.rank_process import Rank, Work
from efficientbench.training.checkpoints.manifest import read_manifest, seal
from efficientbench.training.checkpoints.timing import TimeInterval

if TYPE_CHECKING:
    from efficientbench.finetuning.trainer import Tuner


def rank_work(job_file: Path) -> Work:
    """Return the work of a fine-tuning's ranks."""
    job = TuningJob.read(job_file)
    log = OutputFolder(job.output).log
    return Work(log, partial(tune_rank, job), lambda error, log_file: diagnose(error, job, log_file))


def tune_rank(job: TuningJob, rank: Rank) -> bool:
    """Train, save, verify, and on rank 0 write the record; return whether the training was stopped early."""
    heartbeat = rank.heartbeat
    with without_collection():
        device = _prepared_device(job, rank)
        _log_quietly()
        import torch.distributed as dist

        from efficientbench.finetuning.base_model import load_tokenizer
        from efficientbench.finetuning.build import build, saved_shapes, sft_arguments
        from efficientbench.finetuning.checkpoints import TuningCheckpoints
        from efficientbench.finetuning.listeners import DeepSpeedFile, Heartbeat, Spent, Stop, listeners
        from efficientbench.finetuning.record import peak_of, write_tuning_record
        from efficientbench.finetuning.trainer import Tuner
        from efficientbench.metrics import EfficiencyCallback
        from efficientbench.metrics.monitoring.exchange import gather
        from efficientbench.training.collectives import collectives_begun

    deepspeed = deepspeed_config(job.config, device)
    heartbeat.at(0, "meeting the other ranks")
    # Before the model: ZeRO-3 partitions only models that are loaded after the arguments exist.
    args = sft_arguments(job, deepspeed, device.type)
    heartbeat.collectives = collectives_begun
    # The first node's parent process has found the checkpoint.
    job = replace(job, resume=gather(job.resume, Path | None)[0])
    heartbeat.at(0, "reading examples and checkpoint")
    _read_plainly(job, heartbeat)
    earlier = read_manifest(job.resume).progress if job.resume is not None else None
    lost_s = _cut_logs(OutputFolder(job.output), job.resumed_step, earlier) if rank.number == 0 else 0.0
    train, held_out, order, _ = examples = read_examples(job.examples)
    # All ranks need the same order, or their batches overlap.
    _check_world(job, fingerprint_of(train, held_out, order))
    peak = peak_of(job, device, args.device)
    with _built_visibly(heartbeat):
        model, initial = build(job.config, job.model)
    warmup_steps, meters = job.config.measurement.warmup_steps, job.config.measurement.meters or ()
    monitor = EfficiencyCallback(warmup_steps=warmup_steps, meters=meters)
    stop = Stop(rank.stop_requested, TimeInterval(job.config.checkpoint.interval_s), warmup_steps)
    spent = Spent(rank.begin_s, warmup_steps, earlier, lost_s)
    with _sinks(job, rank.number) as sinks:
        callbacks = [Heartbeat(heartbeat), *listeners(stop, monitor, spent, job.output / "steps.jsonl", sinks)]
        callbacks += [] if deepspeed is None else [DeepSpeedFile(job.output / "deepspeed.json")]
        ratio = job.config.adapter.lora_plus_ratio if find_method(job.config.method).two_rates else None
        shapes = saved_shapes(model)
        trainer = Tuner(
            *(model, args, load_tokenizer(job.model), callbacks, train, held_out, order, ratio, job.held_out_losses),
            *(TuningCheckpoints(job, rank.number, spent.progress), heartbeat),
        )
        trainer.before_evaluation = spent.evaluation_begins
        trainer.load_held_out_losses(job.resumed_step)
        trainer.train(resume_from_checkpoint=str(job.resume) if job.resume is not None else None)
        saved = None if stop.stopped else _save(job, trainer, shapes, initial, rank)
        dist.barrier()
        spent.saved()
        assert monitor.run is not None  # the training has ended
        ended = saved, spent.spent(), stop.by_time.longest_s
        write_tuning_record(job, device, rank, peak, trainer, monitor.run, examples, *ended)
    return stop.stopped


def _prepared_device(job: TuningJob, rank: Rank) -> Device:
    """Return the rank's device, ready for the libraries that are imported after this."""
    device = find_device(job.config.device)
    if device.type == "cpu":
        allow_cpu_ranks()
    else:
        device.prepare(rank.local)
    return device


def _read_plainly(job: TuningJob, heartbeat: HeartbeatWriter) -> None:
    """Verify the checkpoint to resume from, and make DeepSpeed read its files as plain data.

    Raises CheckpointError: a file is damaged.
    """
    from efficientbench.finetuning.deepspeed_files import use_plain_files
    from efficientbench.training.checkpoints.together import verify_together

    files: Collection[str] = ()
    if job.resume is not None:
        files = verify_together(job.resume, lambda what: heartbeat.at(0, f"verifying the checkpoint, {what}")).files
    use_plain_files(job.resume, files)


def _cut_logs(folder: OutputFolder, step: int, earlier: Mapping[str, Any] | None) -> float:
    """Cut what earlier attempts logged of the steps after `step`; return the time that is lost, s.

    `earlier`: the progress that the checkpoint of that step holds; None: this attempt starts at step 1.

    Raises MetricsError: a log cannot be read or written.
    """
    from efficientbench.finetuning.listeners import elapsed_of

    lost_s = time_lost(folder.steps, elapsed_of(earlier))
    if earlier is not None:
        # The Trainer logs by steps, never by tokens.
        cut_logs(folder.steps, folder.tensorboard, step, tokens=0)
        with contextlib.closing(StepLog(folder.steps)) as log:
            keep_lost(log, step, lost_s, elapsed_of(earlier))
    return lost_s


@contextlib.contextmanager
def _built_visibly(heartbeat: HeartbeatWriter) -> Iterator[None]:
    """Report progress for each module and weight while a model is built, loaded and decomposed by PiSSA."""
    from torch.nn.modules import module

    counted = itertools.count(1)

    def count(*_: object) -> None:
        heartbeat.at(0, f"building the model, {next(counted):,} parts so far")

    hooks = [module.register_module_module_registration_hook(count)]
    hooks.append(module.register_module_parameter_registration_hook(count))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _sinks(job: TuningJob, rank: int) -> Iterator[Sinks]:
    """Yield the configured sinks on rank 0, else none; after the block send the record's figures and close them.

    Raises MetricsError: the sink cannot be opened.
    """
    config = job.config
    told = Run(job.output, config.name, {**config.model_dump(mode="json"), "resumed_after": job.resumed_step})
    with contextlib.closing(Sinks({} if rank else asked_of(config), told)) as sinks:
        yield sinks
        if not rank:
            sinks.figures(read_record(OutputFolder(job.output).record))


def _log_quietly() -> None:
    """Send the libraries' messages to this process's log; the terminal shows only the run's own lines."""
    import datasets
    import deepspeed.utils
    import transformers

    transformers.logging.disable_progress_bar()
    transformers.logging.disable_default_handler()
    transformers.logging.enable_propagation()
    datasets.disable_progress_bars()
    for each in (deepspeed.utils.logger, logging.getLogger("accelerate"), logging.getLogger("trl")):
        each.handlers.clear()
        each.propagate = True


def _check_world(job: TuningJob, fingerprint: str) -> None:
    """Check the number of ranks, and that all have the same examples and order, by their SHA-256.

    Raises TrainingError: ranks are missing, two ranks differ, or the file differs from the prepared examples.
    """
    import torch.distributed as dist

    from efficientbench.metrics.monitoring.exchange import gather

    world = dist.get_world_size() if dist.is_initialized() else 1
    if world != job.world:
        raise TrainingError(f"the backend joins {world} ranks, and {job.world} were started")
    found = gather(fingerprint, str) if world > 1 else [fingerprint]
    other = [number for number, each in enumerate(found) if each != found[0]]
    if other:
        raise TrainingError(
            f"rank {other[0]} has other examples or another order than rank 0: the nodes' data or models differ"
        )
    if fingerprint != job.fingerprint:
        raise TrainingError(f"{job.examples} holds other examples or another order than the run was prepared with")


def _save(
    job: TuningJob, trainer: Tuner, shapes: dict[str, Any], initial: dict[str, Any] | None, rank: Rank
) -> int | None:
    """Save on all ranks; on rank 0 verify and seal the files, and return how many numbers they hold, else None."""
    from efficientbench.finetuning.saved import as_plain_lora, doubled, verify

    has_adapter = find_method(job.config.method).lora is not None
    folder = job.output / ("adapter" if has_adapter else "model")

    def report(what: str) -> None:
        rank.heartbeat.at(job.steps, f"saving the weights, {what}")

    report("writing")
    # All ranks take part, since each holds a part of the weights; only rank 0 writes.
    if rank.number:
        trainer.save_model(str(beside(folder, "partial")))
        return None
    with complete_folder(folder) as partial:
        trainer.save_model(str(partial))
        if initial is not None:
            verify(partial, shapes, initial=initial, report=report)
            as_plain_lora(partial, initial)
            shapes = doubled(shapes)
        tied = frozenset() if has_adapter else frozenset(trainer.model.all_tied_weights_keys)
        numbers = verify(partial, shapes, tied, report=report)
        seal(partial, job.manifest(job.steps, "weights", {}), report)
    return numbers
