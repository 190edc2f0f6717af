"""Write the record of a fine-tuning."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from efficientbench.basics.errors import ConfigError
from efficientbench.devices.base import Device
from efficientbench.finetuning.job import TuningJob
from efficientbench.finetuning.methods import find_method
from efficientbench.finetuning.planning.cost import Trained, TuningFlops, attended_length, tuning_flops
from efficientbench.finetuning.planning.shapes import shape_of
from efficientbench.metrics.formulas.definitions import ratio_standard_error
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.records.earlier_peaks import why_too_low
from efficientbench.metrics.records.environment import collect_environment, sensor_states
from efficientbench.metrics.records.facts import Quality, RunFacts, Tuning, Validation
from efficientbench.metrics.records.record import RunRecord, write_record
from efficientbench.metrics.records.record_parts import TimeSpent
from efficientbench.metrics.records.summarize import measured_parts, quality_curve, summarize
from efficientbench.running.identity import shared_identity
from efficientbench.running.rank_process import Rank

if TYPE_CHECKING:
    import torch

    from efficientbench.finetuning.examples.examples import Examples
    from efficientbench.finetuning.trainer import Tuner
    from efficientbench.metrics.monitoring.matmul_peak import Peak


def devices_of(job: TuningJob, device: Device) -> int:
    """Return the number of accelerators, or of nodes if the host is the device."""
    return job.nodes if device.memory_capacity_bytes() is None else job.world


def peak_of(job: TuningJob, device: Device, place: torch.device) -> Peak:
    """Return the peak of one device, see `known_or_measured`; `place`: this rank's device."""
    from efficientbench.metrics.monitoring.matmul_peak import known_or_measured

    given, dtype = job.config.measurement.peak_flops, job.config.training.dtype
    return known_or_measured(given, device.names()[0], dtype, place, devices_of(job, device))


PACKAGES = ("efficientbench", "torch", "torch-npu", "transformers", "trl", "peft", "accelerate", "deepspeed")
"""The packages whose versions go into the record."""


def write_tuning_record(
    job: TuningJob,
    device: Device,
    rank: Rank,
    peak: Peak,
    trainer: Tuner,
    run: RunMeasurement,
    examples: tuple[Examples, Examples, np.ndarray, np.ndarray],
    saved_numbers: int | None,
    spent: TimeSpent | None,
    checkpoint_bound_s: float,
) -> None:
    """Write the record of a completed or stopped run; all ranks may call this, and rank 0 writes.

    Args:
        job: the run's job.
        device: the device of its ranks.
        rank: this process's rank.
        peak: the peak of one device.
        trainer: the trainer, after the training.
        run: the run's measurement.
        examples: as `read_examples` returns them.
        saved_numbers: how many numbers the verified files hold; None: the run was stopped.
        spent: the wall time by part; None: earlier attempts spent time that is not known.
        checkpoint_bound_s: the longest time after which a checkpoint fell due, s.
    """
    if rank.number:
        return
    config, (train, held_out, order, levels) = job.config, examples
    parameters, trained = _parameters(trainer.model)
    # Over all examples, so that repeats, which draw different ones, have the same FLOPs per token.
    flops = _flops(job, train, device)
    known = described(job, device, parameters, None if flops is None else flops.training)
    facts = _facts(job, device, parameters, flops, peak)
    doubt = why_too_low(facts.measured_peak_flops, job.output, known, known["environment"])
    facts = replace(facts, measured_peak_doubt=doubt)
    read = _Read(train, order, config.training.micro_batch_size, job.steps)
    quality, validations = _quality(trainer, run, held_out, read)
    tuned = Tuning(
        trained, len(run.step_numbers) * config.training.global_batch_size, _sum_over(read.padded, run.step_numbers)
    )
    summary = summarize(run, facts, quality, tuned=tuned, spent=spent, checkpoint_bound_s=checkpoint_bound_s)
    unknown = "the costs of this model's architecture, or of this method, are not known"
    missing = {} if flops is not None else {"flops_per_token": unknown}
    known["environment"] |= {"sensors": sensor_states(run.sensors)}
    record = RunRecord(
        **known,
        **summary.values,
        status="stopped" if saved_numbers is None else "completed",
        started_at=rank.started_at.isoformat(timespec="milliseconds"),
        duration_s=time.monotonic() - rank.begin_s,
        unavailable=summary.unavailable | missing,
        **measured_parts(run, summary.outliers),
        # This attempt has measured neither time nor energy of validations before it resumed.
        quality_curve=quality_curve(run, [each for each in validations if each.step > job.resumed_step]),
        resumed_after_steps=[job.resumed_step] if job.resumed_step else [],
        finetuning=_finetuning(job, trainer, levels, train, read, saved_numbers),
    )
    write_record(record, job.output / "record.json")


class _Read:
    """The tokens that each step reads, by the order: without and with padding, and the learned ones; int64 [steps]."""

    def __init__(self, train: Examples, order: np.ndarray, micro: int, steps: int) -> None:
        lengths = train.lengths[order].reshape(steps, -1)
        # A micro-batch is `micro` consecutive examples, padded to the longest one.
        longest_each = lengths.reshape(steps, -1, micro).max(2)
        self.tokens, self.padded = lengths.sum(1), longest_each.sum(1) * micro
        self.supervised = train.supervised[order].reshape(steps, -1).sum(1)


def _sum_over(counts: np.ndarray, steps: Sequence[int]) -> int:
    """Return the sum of each step's counts over steps, which count from 1."""
    return int(counts[np.array(steps, np.int64) - 1].sum())


def described(
    job: TuningJob, device: Device, parameters: int | None = None, flops: float | None = None
) -> dict[str, Any]:
    """Return the run's identity, devices, formulas, data and environment, by the record's field names.

    Args:
        job: the run's job.
        device: the device of its ranks.
        parameters: the number of parameters; None before the model is built.
        flops: the FLOPs per token; None before the model is built, or if they are unknown.
    """
    config = job.config
    label = f"__{config.label}" if config.label else ""
    return {
        **shared_identity(config, device, devices_of(job, device)),
        "run": f"{config.method_name}_{config.size}{label}",
        "variant": config.method_name,
        "size": config.size,
        "smoke": config.smoke,
        "seed": config.training.seed,
        "parameters": parameters,
        "parameters_active": parameters,
        "flops_per_token": flops,
        "seq_len": config.data.max_length,
        "dp": job.world,
        "paths": {"steps": "steps.jsonl", "log": "log", "checkpoint": "checkpoint"},
        "data": [job.data],
        "environment": collect_environment(PACKAGES, Path(__file__).parent),
    }


def _parameters(model: Any) -> tuple[int, int]:
    """Return the numbers of the base's parameters and of trained parameters, unsharded."""
    from efficientbench.finetuning.saved import whole_shape

    sizes = [(name, math.prod(whole_shape(each)), each.requires_grad) for name, each in model.named_parameters()]
    base = sum(size for name, size, _ in sizes if "lora_" not in name)
    return base, sum(size for _, size, trained in sizes if trained)


def _flops(job: TuningJob, train: Examples, device: Device) -> TuningFlops | None:
    """Return the FLOPs per token of the examples; None if the model's shape or the method's formulas are not known."""
    config, adapter = job.config, job.config.adapter
    try:
        shape = shape_of(job.model)
    except ConfigError:
        return None
    formulas = find_method(config.method).formulas
    if formulas is None:
        return None
    trained = Trained(formulas, adapter.r, adapter.targets, adapter.freeze_layers)
    scored = float(train.supervised.sum() / train.lengths.sum())
    # With its Triton kernel TRL skips the logits of tokens without a loss.
    projected = scored if device.triton else 1.0
    tokens = attended_length(train.lengths.tolist())
    return tuning_flops(shape, trained, tokens, config.training.recompute, scored, projected)


def _facts(job: TuningJob, device: Device, parameters: int, flops: TuningFlops | None, peak: Peak) -> RunFacts:
    peak_flops, source, measured = peak
    return RunFacts(
        parameters=parameters,
        parameters_active=parameters,
        devices=devices_of(job, device),
        flops_per_token=None if flops is None else flops.training,
        flops_per_token_full_square=None,
        flops_per_token_hardware=None if flops is None else flops.hardware,
        peak_flops=peak_flops,
        peak_flops_source=source,
        measured_peak_flops=measured,
    )


def _quality(trainer: Tuner, run: RunMeasurement, held_out: Examples, read: _Read) -> tuple[Quality, list[Validation]]:
    """Return the run's losses, and the validation after each held-out loss but the one before the first step."""
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    pauses = _ends_of_windows(trainer, run.step_numbers)
    validations = []
    for step, pairs in sorted(trainer.held_out_losses.items()):
        if not step:
            continue
        measured = [number for number in run.step_numbers if number <= step]
        validations.append(
            Validation(
                step=step,
                tokens=_sum_over(read.tokens, range(1, step + 1)),
                measured_tokens=_sum_over(read.tokens, measured),
                loss=float(pairs[:, 0].sum() / pairs[:, 1].sum()),
                loss_se=_standard_error(pairs),
                windows=sum(end <= step for end in pauses),
                loss_se_values=len(pairs),
            )
        )
    last = validations[-1] if validations else None
    quality = Quality(
        train_loss=math.fsum(losses[-10:]) / len(losses[-10:]) if losses else None,
        validation_loss=last.loss if last else None,
        validation_loss_se=last.loss_se if last else None,
        validation_loss_se_values=len(held_out) if last else None,
        validation_tokens=int(held_out.supervised.sum()),
        validation_text=held_out.fingerprint,
        supervised_tokens=_sum_over(read.supervised, run.step_numbers),
        reasons={"validation_bytes": "the size of the held-out answers in bytes is not counted"},
    )
    return quality, validations


def _ends_of_windows(trainer: Tuner, measured: Sequence[int]) -> list[int]:
    """Return the steps that end a measured window: the monitor pauses for held-out losses and checkpoints."""
    last = trainer.state.global_step
    pauses = {*range(0, last + 1, trainer.args.eval_steps), *trainer.checkpoints.steps, last} - {0}
    ends, begin = [], 0
    for pause in sorted(pauses):
        if any(begin < step <= pause for step in measured):
            ends.append(pause)
        begin = pause
    return ends


def _standard_error(pairs: np.ndarray) -> float | None:
    """Return the standard error of the mean loss per token; `pairs`: each example's sum of losses and tokens."""
    return ratio_standard_error((pairs[:, 0] / pairs[:, 1]).tolist(), pairs[:, 1].tolist())


def _finetuning(
    job: TuningJob, trainer: Tuner, levels: np.ndarray, train: Examples, read: _Read, saved_numbers: int | None
) -> dict[str, Any]:
    """Return the part of the record that only fine-tunings have."""
    names = job.config.curriculum.levels
    curve = []
    for step, pairs in sorted(trainer.held_out_losses.items()):
        parts = {name: pairs[levels == number] for number, name in enumerate(names)}
        by_level = {name: float(part[:, 0].sum() / part[:, 1].sum()) for name, part in parts.items() if len(part)}
        loss = float(pairs[:, 0].sum() / pairs[:, 1].sum())
        supervised = _sum_over(read.supervised, range(1, step + 1))
        curve.append({"step": step, "supervised_tokens": supervised, "loss": loss, "by_level": by_level})
    return {
        "method": job.config.method,
        "base_model": job.model,
        "steps": job.steps,
        "mean_length": round(float(train.lengths.mean())),
        "held_out_too_long": job.held_out_too_long,
        "unusable": job.unusable,
        "curriculum": asdict(job.curriculum),
        "saved_numbers": saved_numbers,
        "hashing_s": trainer.checkpoints.hashing_s,
        "held_out": curve,
    }
