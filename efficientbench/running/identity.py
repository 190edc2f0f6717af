"""The part of a run's record that is known before anything is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from efficientbench.architecture.variant import known, missing
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import count_parameters, dense_keys_per_query, flops_per_token, keys_read_per_query
from efficientbench.devices.base import Device
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.environment import collect_environment
from efficientbench.planning.plan import attended_tokens
from efficientbench.running.corpora import load_corpora, recorded_sources
from efficientbench.running.job import Job

PACKAGES = ("efficientbench", "torch", "megatron-core", "torch-npu", "numpy", "tokenizers", "transformers")
"""Packages whose versions a record has."""

NO_SOURCE = "a module of the variant has no source file, so that its versions cannot be told apart"

WRITTEN = {"steps": "steps.jsonl", **{name: name for name in ("tensorboard", "log", "checkpoint", "tokenizer")}}
"""The record's `paths`: files and folders that a run writes beside it."""


def described(job: Job, device: Device, nodes: int) -> dict[str, Any]:
    """Return what a record says of a job before anything is measured, by the record's field names."""
    devices = nodes if device.memory_capacity_bytes() is None else job.layout.world_size
    return {
        **identity(job, device, devices),
        "unavailable": undeclared(job.config),
        "data": recorded_sources(job),
        "environment": run_environment(job.config, device),
    }


def run_environment(config: RunConfig, device: Device) -> dict[str, Any]:
    """Return a run's machine, packages and commit, and the device's warning about its dtype (None: no warning)."""
    found = collect_environment(PACKAGES, Path(__file__).parent)
    return found | {"dtype_warning": device.dtype_warning(config.training.dtype)}


def identity(job: Job, device: Device, devices: int) -> dict[str, Any]:
    """Return what was run, on which devices and by which formulas, by the record's field names."""
    config, layout = job.config, job.layout
    attended = attended_tokens(config, load_corpora(job) if config.data.attention_within_documents else None)
    flops = known(lambda: flops_per_token(config.model, attended, config.training.recompute))
    return {
        **subject(config),
        **shared_identity(config, device, devices),
        "flops_per_token": None if flops is None else float(flops.training),
        "data_seed": config.order_seed,
        "seq_len": config.training.seq_len,
        **{axis: getattr(layout, axis) for axis in ("tp", "pp", "dp", "ep", "cp")},
        "keys_read_per_query": known(lambda: keys_read_per_query(config.model, attended)),
        "dense_keys_per_query": dense_keys_per_query(attended),
        "paths": WRITTEN,
    }


def shared_identity(config: Any, device: Device, devices: int) -> dict[str, Any]:
    """Return what records say alike of pretraining and fine-tuning, from keys that both configurations have."""
    training = config.training
    return {
        "devices": devices,
        "device_name": device.names()[0],
        "dtype": training.dtype,
        "micro_batch_size": training.micro_batch_size,
        "global_batch_size": training.global_batch_size,
        "formula_id": FORMULAS,
        "config": config.model_dump(mode="json"),
    }


def subject(config: RunConfig) -> dict[str, Any]:
    """Return what was run, by the field names of `records.figures.Subject`."""
    parameters = known(lambda: count_parameters(config.model))
    return {
        "run": f"{config.variant}_{config.size}" + (f"__{config.label}" if config.label else ""),
        "variant": config.variant,
        "size": config.size,
        "smoke": config.smoke,
        "seed": config.training.seed,
        "parameters": None if parameters is None else parameters.total,
        "parameters_active": None if parameters is None else parameters.active,
    }


def undeclared(config: RunConfig) -> dict[str, str]:
    """Return what a record cannot say of a run's model, and why.

    These are figures without a formula in the declarations of its variants, and the code of a variant without a source.
    """
    model, seq_len = config.model, config.training.seq_len
    formulas: dict[str, Callable[[], object]] = {
        "parameters": lambda: count_parameters(model),
        "parameters_active": lambda: count_parameters(model),
        "flops_per_token": lambda: flops_per_token(model, seq_len),
        "keys_read_per_query": lambda: keys_read_per_query(model, seq_len),
    }
    reasons = {name: missing(formula) for name, formula in formulas.items()}
    unread = {f"model.code.{kind}": NO_SOURCE for kind, code in (model.code or {}).items() if code is None}
    return unread | {name: reason for name, reason in reasons.items() if reason is not None}
