"""Writes `report.csv`, one row a run at full precision, and describes its columns.

The glossary of report.html and the page docs/columns.md come from the same descriptions.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.record import RunRecord, columns
from efficientbench.metrics.report.table import ABSENT

UNAVAILABLE = "unavailable"
NO_REASON = "the run's record does not hold it"


@dataclass(frozen=True)
class Column:
    """The description of one column."""

    unit: str
    """Empty for a text, a count or a ratio."""
    meaning: str
    known_as: str = ""
    """The same figure in nanotron's benchmark CSV, llm-foundry's benchmark table or Megatron's log."""


DESCRIPTIONS: Mapping[str, Column] = {
    "run": Column(
        "",
        "the run's name, `<variant>_<size>` in the harness, `__<key>=<value>` after it in a sweep",
        "llm-foundry Model",
    ),
    "variant": Column("", "the architectural choice that the run stands for"),
    "size": Column("", "the backbone's size"),
    "smoke": Column("", "true: a scaled-down model, whose figures do not stand for the named one's"),
    "seed": Column("", "of the weights and the data order"),
    "parameters": Column("", "P, all of the model's", "llm-foundry NumParams"),
    "parameters_active": Column("", "those that one token uses; fewer than P in a mixture of experts"),
    "flops_per_token": Column("FLOP", "forward and backward, matmuls only, causal attention halved, no recomputation"),
    "devices": Column("", "D: accelerators, or hosts where the host is the device", "llm-foundry # GPUs"),
    "device_name": Column("", "as the driver gives it", "llm-foundry GPU"),
    "dtype": Column("", "of the matrix products", "llm-foundry Precision"),
    "seq_len": Column("tokens", "of a training sequence", "llm-foundry SeqLen (T)"),
    "micro_batch_size": Column("sequences", "of one forward and backward on one replica", "nanotron micro_batch_size"),
    "global_batch_size": Column("sequences", "of one optimizer step over all replicas", "llm-foundry GlobalBatchSize"),
    "tp": Column("ranks", "tensor parallel", "nanotron tp"),
    "pp": Column("ranks", "pipeline parallel", "nanotron pp"),
    "dp": Column("ranks", "data parallel", "nanotron dp"),
    "ep": Column("ranks", "expert parallel, among those of cp × dp"),
    "cp": Column("ranks", "context parallel"),
    "tokens": Column("tokens", "K, trained on inside the measured window"),
    "steps_measured": Column("steps", "N, optimizer steps inside the measured window"),
    "amu_gb": Column("GB", "AMU: mean memory used, (1/T) ∫ memory dt, mean over devices; EfficientLLM eq. 1"),
    "amu_fraction": Column("", "AMU over the device's capacity"),
    "pcu": Column("", "PCU: mean busy fraction, (1/T) ∫ utilization dt, mean over devices; EfficientLLM eq. 2"),
    "al_s": Column("s", "AL: mean synchronized time of a step, the slowest rank's; EfficientLLM eq. 3"),
    "al_s_p50": Column("s", "median time of a step"),
    "al_s_p90": Column("s", "90th percentile of the time of a step"),
    "al_s_p99": Column("s", "99th percentile of the time of a step"),
    "al_s_ci_low": Column(
        "s", "lower end of AL's 95 % confidence interval; n/a below 30 steps, and at least so wide below 400"
    ),
    "al_s_ci_high": Column("s", "upper end of AL's 95 % confidence interval"),
    "tt_tokens_per_param_s": Column("tokens / parameter / s", "TT: tokens over P over step time; EfficientLLM eq. 4"),
    "tokens_per_s": Column("tokens/s", "over all devices", "nanotron tokens_per_sec; llm-foundry Throughput (T/s)"),
    "tokens_per_s_per_device": Column(
        "tokens/s", "of one device", "nanotron tokens_per_sec_per_gpu; llm-foundry Throughput (T/s/GPU)"
    ),
    "aec_w": Column("W", "AEC: mean power of one device, (1/T) ∫ power dt, whatever its name says; EfficientLLM eq. 8"),
    "power_w_sum": Column("W", "mean power of all devices together"),
    "energy_j": Column("J", "of the measured window, all devices"),
    "energy_j_per_token": Column("J/token", "energy over K: what energies are compared by"),
    "energy_scope": Column("", "what the energy is of: gpu, npu, cpu-package, node"),
    "mfu": Column(
        "", "model FLOPs over what the devices could do in the steps' time, causal attention halved", "llm-foundry MFU"
    ),
    "mfu_full_square": Column("", "MFU with the full square of attention scores counted (PaLM's convention)"),
    "hfu": Column(
        "", "MFU with recomputation, scores computed again in the backward pass and padding added", "llm-foundry HFU"
    ),
    "peak_memory_allocated_bytes": Column("bytes", "the allocator's peak of tensors", "nanotron peak_allocated_MiB"),
    "peak_memory_reserved_bytes": Column("bytes", "the allocator's peak with its cache", "nanotron peak_reserved_MiB"),
    "peak_memory_device_bytes": Column("bytes", "the driver's peak for the whole device", "nanotron memory_usage_MiB"),
    "train_loss": Column("nats", "training loss, mean of the last 10 steps", "nanotron lm_loss; Megatron lm loss"),
    "validation_loss": Column("nats", "mean over the tokens of the validation text"),
    "perplexity": Column("", "exp(validation loss)", "EfficientLLM PPL"),
    "bits_per_byte": Column("bits", "validation loss per UTF-8 byte: comparable between tokenizers"),
    "device_scope": Column("", "what AMU, PCU, AEC and the device's peak are of: gpu, npu or host"),
    "amu_gb_max": Column("GB", "AMU of the device that used most"),
    "amu_fraction_max": Column("", "AMU over capacity, of the device that used most"),
    "memory_idle_gb": Column("GB", "memory used before the model was built, mean over devices"),
    "memory_kind": Column("", "how memory was counted: driver (all of the device), pss or rss (the run's processes)"),
    "memory_allocated_mean_gb": Column("GB", "the allocator's own mean over the window"),
    "al_s_std": Column("s", "standard deviation of the time of a step"),
    "al_s_cv": Column("", "standard deviation over mean of the time of a step: its noise"),
    "tt_tokens_per_active_param_s": Column("tokens / parameter / s", "TT over the active parameters"),
    "energy_j_per_step": Column("J/step", "energy of one optimizer step"),
    "tokens_per_j": Column("tokens/J", "tokens trained on for one joule"),
    "energy_source": Column("", "counter (a register of the device) or integrated power (polled)"),
    "window_s": Column("s", "T, length of the measured window"),
    "sample_interval_s": Column(
        "s", "longest mean interval of a device between readings of memory, utilization or power"
    ),
    "peak_flops": Column("FLOP/s", "of one device for the dtype, dense: what MFU is a fraction of"),
    "peak_flops_source": Column("", "datasheet or configuration that the peak is from"),
    "auxiliary_loss": Column("", "load-balancing loss of a mixture of experts, without its factor"),
    "expert_load_imbalance": Column("", "tokens of the busiest expert over its layer's mean, mean over layers"),
    "al_s_p50_ci_low": Column("s", "lower end of the median's 95 % confidence interval"),
    "al_s_p50_ci_high": Column("s", "upper end of the median's 95 % confidence interval"),
    "al_s_block_steps": Column("steps", "for so many steps neighbours are alike; steps further apart are independent"),
    "al_s_drift_ratio": Column("", "time of a step at the window's end over that at its beginning"),
    "al_s_drift_ratio_low": Column("", "lower end of the ratio's 95 % confidence interval"),
    "al_s_drift_ratio_high": Column("", "upper end of the ratio's 95 % confidence interval"),
    "al_s_drift_p": Column("", "chance of so clear a trend where there is none"),
    "al_s_drift_flagged": Column("", "true: the drift is significant and large (throttling, a shared device)"),
    "outlier_steps": Column("steps", "steps that took much longer than the others"),
    "validation_loss_se": Column("nats", "standard error of the validation loss over its documents, or the repeats"),
    "tokens_trained": Column("tokens", "trained on since the start, warm-up included"),
    "tokens_per_parameter": Column("", "tokens_trained over P; below 1 the row is speed only"),
    "unique_tokens": Column("tokens", "different tokens of the text among tokens_trained"),
    "epochs": Column("", "how often the training text was read, its most repeated source; above 4: speed only"),
    "unigram_entropy": Column("nats", "of the text's single tokens; a validation loss above it: speed only"),
    "keys_read_per_query": Column("keys", "mean keys that a query's attention reads in training"),
    "dense_keys_per_query": Column("keys", "mean keys that dense causal attention reads in training"),
    "status": Column("", "completed, stopped (on request) or failed"),
    "started_at": Column("UTC", "when the run began, ISO 8601"),
    "duration_s": Column("s", "from start to end, set-up and evaluation included"),
    "formula_id": Column("", "the edition of the formulas; rows of different ids are not compared"),
    "repeats": Column("runs", "with consecutive seeds, of which the row holds the mean; intervals are then over runs"),
    "model": Column("", "`<variant>_<size>`", "nanotron model; llm-foundry Model"),
    "gradient_accumulation_steps": Column(
        "", "global_batch_size / (micro_batch_size · dp)", "nanotron batch_accumulation_per_replica; GradAccum"
    ),
    "global_batch_size_tokens": Column("tokens", "global_batch_size · seq_len", "llm-foundry GlobalBatchSize (T)"),
    "recompute": Column("", "activation recomputation", "llm-foundry Activation Checkpointing"),
    "elapsed_time_per_iteration_ms": Column(
        "ms", "AL in ms", "nanotron elapsed_time_per_iteration_ms; Megatron elapsed time per iteration (ms)"
    ),
    "samples_per_s": Column("sequences/s", "tokens_per_s / seq_len", "llm-foundry Throughput (S/s)"),
    "model_tflops_per_device": Column(
        "TFLOP/s", "flops_per_token · tokens_per_s_per_device", "nanotron model_tflops_per_gpu; Megatron TFLOP/s/GPU"
    ),
    "hardware_tflops_per_device": Column("TFLOP/s", "hfu · peak_flops", "nanotron hardware_tflops_per_gpu"),
    "repeat_std": Column("", "'name: standard deviation over the repeats' of each figure, joined by ' | '"),
    "micro_batch_size_asked": Column("sequences", "another than the one used where memory did not suffice for it"),
    "validation_loss_se_values": Column(
        "", "documents, or repeats, of validation_loss_se, whose interval is Student's"
    ),
    "speed_only": Column("", "why the losses take no part in comparisons; empty where they do"),
    UNAVAILABLE: Column("", "for each n/a of the row 'name: reason', joined by ' | '"),
}


def names() -> list[str]:
    """Return all columns in their order: the record's figures, those that follow from them, the reasons."""
    return [*columns(), *derived_names(), UNAVAILABLE]


def derived_names() -> list[str]:
    """Return the columns that follow from the record's."""
    recorded = set(columns())
    return [name for name in DESCRIPTIONS if name not in recorded and name != UNAVAILABLE]


def row(record: RunRecord) -> tuple[dict[str, Any], dict[str, str]]:
    """Return all figures of a run by column, and the reason for each that is None."""
    values = {name: getattr(record, name) for name in columns()} | _derived(record)
    reasons = dict(record.unavailable)
    for name, value in values.items():
        if value is None and not reasons.get(name):
            reasons[name] = reasons.get(_NEEDED.get(name, ""), NO_REASON)
    return values, reasons


def _derived(record: RunRecord) -> dict[str, Any]:
    """Return the figures that other projects' tables have."""
    step_sequences = record.micro_batch_size * record.dp
    accumulation = record.global_batch_size // step_sequences if step_sequences else None
    tflops_per_token = None if record.flops_per_token is None else record.flops_per_token / 1e12
    return {
        "model": f"{record.variant}_{record.size}",
        "gradient_accumulation_steps": accumulation,
        "global_batch_size_tokens": record.global_batch_size * record.seq_len,
        "recompute": record.section("training").get("recompute"),
        "elapsed_time_per_iteration_ms": _times(record.al_s, 1e3),
        "samples_per_s": _times(record.tokens_per_s, 1 / record.seq_len) if record.seq_len else None,
        "model_tflops_per_device": _times(record.tokens_per_s_per_device, tflops_per_token),
        "hardware_tflops_per_device": _times(record.hfu, record.peak_flops, 1e-12),
        "repeat_std": " | ".join(f"{name}: {std!r}" for name, std in record.repeat_std.items()),
        "micro_batch_size_asked": record.micro_batch_size_asked,
        "validation_loss_se_values": record.validation_loss_se_values,
        "speed_only": record.speed_only_reason or "",
    }


_NEEDED = {
    "elapsed_time_per_iteration_ms": "al_s",
    "samples_per_s": "tokens_per_s",
    "model_tflops_per_device": "tokens_per_s_per_device",
    "hardware_tflops_per_device": "hfu",
    "validation_loss_se_values": "validation_loss_se",
}
"""Derived figure → the record's figure that it needs, whose reason explains its absence."""


def _times(*factors: float | None) -> float | None:
    return None if None in factors else math.prod(factor for factor in factors if factor is not None)


def write_csv(records: Iterable[RunRecord], path: Path) -> None:
    """Write one row a run, at full precision. Raises MetricsError where the file cannot be written."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names(), lineterminator="\n")
    writer.writeheader()
    for record in records:
        values, reasons = row(record)
        cells = {name: _cell(value) for name, value in values.items()}
        cells[UNAVAILABLE] = " | ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
        writer.writerow(cells)
    write_whole(path, text.getvalue())


def _cell(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)
