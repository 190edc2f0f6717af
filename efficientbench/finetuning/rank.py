"""One rank of a fine-tuning: `python -m efficientbench.finetuning.rank JOB.json`; the launcher starts it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efficientbench.basics.errors import NonFiniteError, TrainingError
from efficientbench.basics.files import beside, complete_folder
from efficientbench.basics.readers import outlive_readers
from efficientbench.devices.registry import find_device
from efficientbench.finetuning.examples.examples import fingerprint_of, read_examples
from efficientbench.finetuning.job import TuningJob
from efficientbench.finetuning.methods import find_method
from efficientbench.finetuning.zero import allow_cpu_ranks, deepspeed_config
from efficientbench.launchers.processes.failure import Failure
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics.records.record import FIGURES, read_record
from efficientbench.metrics.records.sinks.wandb_log import WandbLog
from efficientbench.running.errors import USERS_MISTAKES
from efficientbench.running.failures import ran_out_of_memory, users_mistake
from efficientbench.running.output_folder import OutputFolder
from efficientbench.running.rank_process import StopRequested, end, run_rank
from efficientbench.training.checkpoints.manifest import seal

if TYPE_CHECKING:
    from efficientbench.finetuning.trainer import Tuner


def main() -> int:
    """Run the rank that the environment names, and report a failure to the launcher; return the exit code."""
    outlive_readers(pipes=True)
    job = TuningJob.read(Path(sys.argv[1]))
    rank = int(os.environ["RANK"])
    log_file = OutputFolder(job.output).log / f"rank_{rank}.log"

    def work(stop_requested: StopRequested) -> bool:
        heartbeat = HeartbeatWriter()
        heartbeat.start()
        return tune_rank(job, rank, stop_requested, heartbeat)

    return run_rank(rank, log_file, work, lambda error: diagnose(error, log_file))


def tune_rank(job: TuningJob, rank: int, stop_requested: StopRequested, heartbeat: HeartbeatWriter) -> bool:
    """Train, save, verify, and on rank 0 write the record; return whether the training was stopped early."""
    device = find_device(job.config.device)
    if device.type == "cpu":
        allow_cpu_ranks()
    else:
        device.prepare(int(os.environ["LOCAL_RANK"]))
    _log_quietly()
    import torch.distributed as dist

    from efficientbench.finetuning.arguments import sft_arguments
    from efficientbench.finetuning.base_model import load_tokenizer
    from efficientbench.finetuning.build import build, saved_shapes
    from efficientbench.finetuning.checkpoints import TuningCheckpoints
    from efficientbench.finetuning.listeners import DeepSpeedFile, Heartbeat, Spent, Stop, listeners
    from efficientbench.finetuning.record import Recording, peak_on_the_spot
    from efficientbench.finetuning.trainer import Tuner
    from efficientbench.metrics import EfficiencyCallback
    from efficientbench.training.collectives import collectives_begun

    recording = Recording(job, device)
    deepspeed = deepspeed_config(job.config, device)
    heartbeat.at(0, "meeting the other ranks")
    # Before the model: ZeRO-3 partitions only models that are loaded after the arguments exist.
    args = sft_arguments(job, deepspeed, device.type)
    heartbeat.collectives = collectives_begun
    heartbeat.at(0, "reading examples and checkpoint")
    _read_plainly(job, heartbeat)
    train, held_out, order, levels = read_examples(job.examples)
    # All ranks need the same order, or their batches overlap.
    _check_world(job, fingerprint_of(train, held_out, order))
    recording.measured_peak_flops = peak_on_the_spot(job, device, args.device)
    with _built_visibly(heartbeat):
        model, initial = build(job.config, job.model)
    tokenizer = load_tokenizer(job.model)
    measurement = job.config.measurement
    monitor = EfficiencyCallback(warmup_steps=measurement.warmup_steps, meters=measurement.meters or ())
    stop = Stop(stop_requested)
    spent = Spent(recording.begin_s, job.config.measurement.warmup_steps, bool(job.resumed_step))
    with _sink(job, rank) as sink:
        callbacks = [Heartbeat(heartbeat), *listeners(stop, monitor, spent, job.output / "steps.jsonl", sink)]
        if deepspeed is not None:
            callbacks.append(DeepSpeedFile(job.output / "deepspeed.json"))
        ratio = job.config.adapter.lora_plus_ratio if find_method(job.config.method).two_rates else None
        shapes = saved_shapes(model)
        trainer = Tuner(
            *(model, args, tokenizer, callbacks, train, held_out, order, ratio, job.held_out_losses),
            *(TuningCheckpoints(job, rank), heartbeat),
        )
        trainer.before_evaluation = spent.evaluation_begins
        trainer.load_held_out_losses(job.resumed_step)
        trainer.train(resume_from_checkpoint=str(job.resume) if job.resume is not None else None)
        saved = None if stop.stopped else _save(job, trainer, shapes, initial, rank, heartbeat)
        dist.barrier()
        spent.saved()
        assert monitor.run is not None  # the training has ended
        recording.write(trainer, monitor.run, train, held_out, order, levels, saved, spent.spent())
        if sink is not None:
            record = read_record(OutputFolder(job.output).record)
            sink.figures({name: getattr(record, name) for name in FIGURES})
    return stop.stopped


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
def _sink(job: TuningJob, rank: int) -> Iterator[WandbLog | None]:
    """Yield the configured sink on rank 0, else None; close the sink after the block.

    Raises MetricsError: the sink cannot be opened.
    """
    config = job.config
    if config.wandb is None or rank:
        yield None
        return
    settings = {**config.model_dump(mode="json"), "resumed_after": job.resumed_step}
    with contextlib.closing(WandbLog(config.wandb, job.output, config.name, settings)) as sink:
        yield sink


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
    job: TuningJob,
    trainer: Tuner,
    shapes: dict[str, Any],
    initial: dict[str, Any] | None,
    rank: int,
    heartbeat: HeartbeatWriter,
) -> int | None:
    """Save on all ranks; on rank 0 verify and seal the files, and return how many numbers they hold, else None."""
    from efficientbench.finetuning.saved import as_plain_lora, doubled, verify

    has_adapter = find_method(job.config.method).lora is not None
    folder = job.output / ("adapter" if has_adapter else "model")

    def report(what: str) -> None:
        heartbeat.at(job.steps, f"saving the weights, {what}")

    report("writing")
    # All ranks take part, since each holds a part of the weights; only rank 0 writes.
    if rank:
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
        seal(partial, job.manifest(job.steps, "weights"), report)
    return numbers


def diagnose(error: Exception, log_file: Path) -> Failure:
    """Return the failure that an exception on a rank means. `log_file`: the log that holds its traceback."""
    if isinstance(error, USERS_MISTAKES):
        return users_mistake(error)
    if isinstance(error, NonFiniteError):
        return Failure("non_finite", str(error), rank=error.rank, step=error.step)
    first = next(iter(str(error).splitlines()), "") or type(error).__name__
    if ran_out_of_memory(error):
        helps = "a smaller training.micro_batch_size, zero.offload=optimizer or more ranks would help"
        return Failure("out_of_memory", f"out of memory: {first} ({helps}; traceback in {log_file})")
    return Failure("crash", f"{type(error).__name__}: {first} (traceback in {log_file})")


if __name__ == "__main__":
    end(main())
