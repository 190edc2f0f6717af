"""What the record of a run says before anything is measured, and the whole record of a run that failed."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import count_parameters, dense_keys_per_query, flops_per_token, keys_read_per_query
from efficientbench.devices.base import Device
from efficientbench.metrics.records.environment import collect_environment
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.summarize import nothing_measured
from efficientbench.running.corpora import recorded_sources
from efficientbench.running.job import Job

PACKAGES = ("efficientbench", "torch", "megatron-core", "torch-npu", "numpy", "tokenizers", "transformers")

WRITTEN = {"steps": "steps.jsonl", "tensorboard": "tensorboard", "log": "log", "checkpoint": "checkpoint"}
"""What a run writes beside its record."""


def failed_record(
    job: Job, device: Device, nodes: int, reason: str, started_at: datetime, duration_s: float
) -> RunRecord:
    """The record of a run that ended by a failure: what it was, and for every figure why there is none."""
    config = job.config
    summary = nothing_measured(reason)
    devices = nodes if device.memory_capacity_bytes() is None else job.layout.world_size
    return RunRecord(
        **identity(job, device, devices),
        **summary.values,
        status="failed",
        started_at=started_at.isoformat(timespec="seconds"),
        duration_s=duration_s,
        unavailable=summary.unavailable,
        data=recorded_sources(job),
        keys_read_per_query=keys_read_per_query(config.model, config.training.seq_len),
        dense_keys_per_query=dense_keys_per_query(config.training.seq_len),
        kernels={},
        config=config.model_dump(mode="json"),
        environment=run_environment(config, device),
        paths=WRITTEN,
    )


def run_environment(config: RunConfig, device: Device) -> dict[str, Any]:
    """Where the run happened, and what is to be known of its dtype there."""
    found = collect_environment(PACKAGES, Path(__file__).parent)
    return found | {"dtype_warning": device.dtype_warning(config.training.dtype)}


def identity(job: Job, device: Device, devices: int) -> dict[str, Any]:
    """What was run, and on what, by the record's names."""
    config, layout = job.config, job.layout
    parameters = count_parameters(config.model)
    flops = flops_per_token(config.model, config.training.seq_len, config.training.recompute)
    return {
        "run": f"{config.variant}_{config.size}" + (f"__{config.label}" if config.label else ""),
        "variant": config.variant,
        "size": config.size,
        "smoke": config.smoke,
        "seed": config.training.seed,
        "parameters": parameters.total,
        "parameters_active": parameters.active,
        "flops_per_token": float(flops.training),
        "devices": devices,
        "device_name": device.names()[0],
        "dtype": config.training.dtype,
        "seq_len": config.training.seq_len,
        "micro_batch_size": config.training.micro_batch_size,
        "global_batch_size": config.training.global_batch_size,
        **{axis: getattr(layout, axis) for axis in ("tp", "pp", "dp", "ep", "cp")},
    }
