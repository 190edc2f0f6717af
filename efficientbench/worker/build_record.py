"""Build the record of a run from the measurements of all its ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from efficientbench import metrics
from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.variant import known
from efficientbench.config.schema import RunConfig
from efficientbench.config.training import TrainingConfig
from efficientbench.costs.compute import AttentionWork, hardware_flops_per_token
from efficientbench.costs.model import (
    count_parameters,
    dense_keys_per_query,
    flops_per_token,
    keys_read_per_query,
    over_documents,
)
from efficientbench.devices.base import Device
from efficientbench.metrics.formulas.definitions import load_imbalance
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.metrics.monitoring.measurement import RankMeasurement
from efficientbench.metrics.records.earlier_peaks import why_too_low
from efficientbench.metrics.records.environment import sensor_states
from efficientbench.metrics.records.facts import NOT_SAID, Quality, RunFacts
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.record_parts import ExpertLoad, ParameterGroup, TimeSpent
from efficientbench.metrics.records.summarize import measured_parts, quality_curve, summarize
from efficientbench.metrics.sensors.host import host_uuid
from efficientbench.planning.plan import attended_tokens, not_promised
from efficientbench.running.corpora import load_corpora, recorded_sources, what_was_read
from efficientbench.running.identity import identity, run_environment, undeclared
from efficientbench.running.job import Job
from efficientbench.worker.listeners.recorder import Recorder

if TYPE_CHECKING:
    import torch

    from efficientbench.training.data.batches import Batches

WRITES = "reinforcement learning reads no text: the model writes what it learns from"


def run_facts(job: Job, device: Device, torch_device: torch.device) -> RunFacts:
    """Return what is known of the run before its first step; all ranks must call this together.

    Where no table has the peak of `torch_device`, matrix products are timed on it.
    """
    from efficientbench.metrics.monitoring.matmul_peak import known_or_measured
    from efficientbench.model.kernels.names import attention_work

    config, layout = job.config, job.layout
    model, training = config.model, config.training
    parameters = known(lambda: count_parameters(model))
    attended = attended_tokens(config, load_corpora(job) if config.data.attention_within_documents else None)
    flops = known(lambda: flops_per_token(model, attended, training.recompute))
    hardware = known(
        lambda: hardware_flops_per_token(
            model, attended, training.recompute, lambda view: attention_work(config.with_view(view), device.type)
        )
    )
    hosts = len(set(gather(host_uuid(), str)))
    devices = hosts if device.memory_capacity_bytes() is None else layout.world_size
    peak, source, measured_peak = known_or_measured(
        config.measurement.peak_flops, device.names()[0], training.dtype, torch_device, devices
    )
    return RunFacts(
        parameters=None if parameters is None else parameters.total,
        parameters_active=None if parameters is None else parameters.active,
        devices=devices,
        flops_per_token=None if flops is None else flops.training,
        flops_per_token_full_square=None if flops is None else flops.training_full_square,
        flops_per_token_hardware=hardware,
        peak_flops=peak,
        peak_flops_source=source,
        measured_peak_flops=measured_peak,
    )


def all_lengths(config: RunConfig, batches: Batches) -> Mapping[int, int]:
    """Return length → documents of that length that the ranks have read; empty where attention goes on.

    All ranks must call this together. Ranks that read the same documents count them each.
    """
    if not config.data.attention_within_documents:
        return {}
    return sum(map(Counter, gather(dict(batches.document_lengths), dict[int, int])), Counter())


def facts_of(facts: RunFacts, config: RunConfig, device_type: str, lengths: Mapping[int, int]) -> RunFacts:
    """Return the facts with the FLOPs of the documents read; `lengths`: as of `all_lengths`."""
    from efficientbench.model.kernels.names import attention_work

    if not lengths:
        return facts
    model, recompute = config.model, config.training.recompute

    def hardware(tokens: int) -> float:
        # Only a layer's own kernels do other work at other lengths; other kernels may be measured for theirs.
        def work(view: ModelConfig) -> AttentionWork:
            training = config.training.model_copy(update={} if view.plain_scores else {"seq_len": tokens})
            return attention_work(config.model_copy(update={"training": training, "model": view}), device_type)

        return hardware_flops_per_token(model, tokens, recompute, work)

    def full_square(tokens: int) -> float:
        return flops_per_token(model, tokens, recompute).training_full_square

    return replace(
        facts,
        flops_per_token=known(lambda: over_documents(lengths, lambda each: flops_per_token(model, each).training)),
        flops_per_token_full_square=known(lambda: over_documents(lengths, full_square)),
        flops_per_token_hardware=known(lambda: over_documents(lengths, hardware)),
    )


def figures_of(facts: RunFacts, config: RunConfig, lengths: Mapping[int, int]) -> dict[str, float | None]:
    """Return the record's figures that follow from the documents read, by name; `facts`: from `facts_of`."""
    if not lengths:
        return {}
    return {
        "flops_per_token": facts.flops_per_token,
        "keys_read_per_query": known(
            lambda: over_documents(lengths, lambda each: keys_read_per_query(config.model, each))
        ),
        "dense_keys_per_query": over_documents(lengths, dense_keys_per_query),
    }


def build_record(
    job: Job,
    device: Device,
    facts: RunFacts,
    measured: Sequence[RankMeasurement],
    recorder: Recorder,
    decayed: Sequence[str],
    groups: Sequence[ParameterGroup],
    batches: Batches,
    stopped: bool,
    started_at: datetime,
    duration_s: float,
    spent: TimeSpent | None,
    checkpoint_bound_s: float | None,
) -> RunRecord:
    """Return the record of a run that has ended.

    `measured` has every rank's measurement, in the order of ranks; `decayed` names the parameters with weight decay,
    and `groups` those of each optimizer; `spent` has the wall time by its parts; `checkpoint_bound_s`: see `Measured`.
    """
    from efficientbench.model.kernels.names import fallback_kernels, kernel_names, kernel_reasons

    config, run, quality = job.config, metrics.merge(measured), recorder.quality()
    scored = quality.validation_documents
    reads = config.training.objective != "rl"
    reading = what_was_read(job, recorder.tokens, batches.source_tokens()) if reads else None
    names, environment = identity(job, device, facts.devices), run_environment(config, device)
    doubt = why_too_low(facts.measured_peak_flops, job.output, names, environment)
    facts = replace(facts, measured_peak_doubt=doubt)
    summary = summarize(
        run, facts, quality, recorder.interruptions, reading, spent=spent, checkpoint_bound_s=checkpoint_bound_s
    )
    return RunRecord(
        **names,
        **summary.values,
        status="stopped" if stopped else "completed",
        started_at=started_at.isoformat(timespec="milliseconds"),
        duration_s=duration_s,
        unavailable=_reasons(summary.unavailable, reads) | undeclared(config),
        data=recorded_sources(job, batches.duplicates, batches.too_long),
        validation_loss_se_values=quality.validation_loss_se_values,
        experts=_expert_load(quality),
        kernels=kernel_names(config, device.type),
        kernel_reasons=kernel_reasons(config, device.type),
        decayed_parameters=list(decayed),
        parameter_groups=list(groups),
        fallback_kernels=fallback_kernels(config, device.type),
        # The losses of a diverged model are NaN or infinite.
        validation_sequence_losses=list(scored) if all(map(math.isfinite, scored)) else [],
        validation_text=quality.validation_text,
        attention_across_documents=not config.data.attention_within_documents,
        quality_curve=quality_curve(run, recorder.validations),
        **measured_parts(run, summary.outliers),
        resumed_after_steps=recorder.resumed,
        rechecks=recorder.rechecks if recorder.rechecks.count else None,
        nondeterministic=not_promised(config, device),
        time_limit_s=job.budget.time_limit_s,
        lost=recorder.lost,
        environment=environment | {"versions": device.versions(), "sensors": sensor_states(run.sensors)},
    )


def parameter_groups(training: TrainingConfig, roles: Sequence[Mapping[str, list[str]]]) -> list[ParameterGroup]:
    """Return parameters and learning rate of each optimizer; `roles`: what `role_names` returns on each rank."""
    from efficientbench.training.update.parameter_roles import rates

    found = []
    for role, rate in rates(training).items():
        if names := sorted(set().union(*(each.get(role, []) for each in roles))):
            optimizer = training.optimizer if role == "matrices" else "adamw"
            found.append(ParameterGroup(role=role, optimizer=optimizer, learning_rate=rate, parameters=names))
    return found


def _reasons(unavailable: Mapping[str, str], reads: bool) -> dict[str, str]:
    """Return why figures are absent; `reads`: whether the run learns from text, and not from what its model writes."""
    return {name: WRITES if reason == NOT_SAID and not reads else reason for name, reason in unavailable.items()}


def _expert_load(quality: Quality) -> ExpertLoad | None:
    if not quality.tokens_per_expert:
        return None
    return ExpertLoad(
        tokens_per_expert=[list(layer) for layer in quality.tokens_per_expert],
        load_imbalance=list(load_imbalance(quality.tokens_per_expert)),
    )
