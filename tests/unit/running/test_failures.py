"""Which failure an exception on a rank means."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors import SafetensorError
from support.metrics_parts import make_record
from support.text_files import TEXTS, write_kind

from efficientbench.basics.errors import ConfigError, MetricsError, NonFiniteError, TrainingError
from efficientbench.config.budget import plan_budget
from efficientbench.config.layout import Layout
from efficientbench.config.load import resolve
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.devices.cpu import CPU
from efficientbench.finetuning.job import TuningJob
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.finetuning.saved import SavingError
from efficientbench.launchers.processes.failure import Failure
from efficientbench.metrics.records.record import read_record, write_record
from efficientbench.running.failures import FailureFiles, diagnose
from efficientbench.running.identity import described
from efficientbench.running.job import Job
from efficientbench.running.output_folder import OutputFolder


def refused_by_torch() -> Exception:
    try:
        torch.empty(1 << 60, dtype=torch.uint8)
    except RuntimeError as error:
        return error
    raise AssertionError("this machine has an exbibyte of memory")


def job(output: Path) -> Job:
    config = resolve("gqa_1.5B", smoke=True, overrides=["device=cpu"])
    layout = Layout.of(config, 1, 1, oversubscribe=True)
    return Job(config, layout, plan_budget(config, 1000), (), output)


def tuning_job(output: Path) -> TuningJob:
    unused, config = cast(Any, None), resolve_tuning("lora_tiny", overrides=[f"cache={output}"])
    return TuningJob(config, output, 1, 1, "", output / "examples.npz", "", 4, 0, unused, unused)


@pytest.mark.parametrize(
    ("error", "kind", "exit_code"),
    [
        (ConfigError("model.heads: 3"), "mistake", 2),
        (MetricsError("steps.jsonl: cannot be written (No space left on device)"), "full_disk", 2),
        (OSError(errno.ENOSPC, "No space left on device"), "full_disk", 2),
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), "full_disk", 2),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "out_of_memory", 1),
        (refused_by_torch(), "out_of_memory", 1),
        (MemoryError(), "out_of_memory", 1),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "out_of_memory", 1),
        (RuntimeError("NPU out of memory. Tried to allocate 20.00 MiB"), "out_of_memory", 1),
        (RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:9"), "lost_rank", 1),
        (NonFiniteError("step 7: the loss is not finite on rank 3", 7, 3), "non_finite", 1),
        (ValueError("crooked"), "crash", 1),
        (SavingError("adapter: what was saved is not what was trained"), "crash", 1),
        (TrainingError("rank 1 has other examples"), "mistake", 2),
        (RuntimeError("kthvalue CUDA does not have a deterministic implementation, but you set"), "mistake", 2),
    ],
)
@pytest.mark.parametrize("make_job", [job, tuning_job])
def test_each_exception_has_its_kind_of_failure_and_exit_code(
    tmp_path: Path, make_job: Callable[[Path], Job | TuningJob], error: Exception, kind: str, exit_code: int
) -> None:
    found = diagnose(error, make_job(tmp_path), tmp_path / "rank_0.log")
    assert (found.kind, found.exit_code) == (kind, exit_code)
    if kind == "non_finite":
        assert (found.rank, found.step) == (3, 7)


@pytest.mark.parametrize("make_job", [job, tuning_job])
def test_a_reason_is_the_first_line(tmp_path: Path, make_job: Callable[[Path], Job | TuningJob]) -> None:
    log = tmp_path / "rank_0.log"
    for error in (RuntimeError("an operator failed\nframe #0\nframe #1"), ValueError("\nan operator failed\nhere")):
        found = diagnose(error, make_job(tmp_path), log)
        assert found.reason == f"{type(error).__name__}: an operator failed (traceback in {log})"


@pytest.mark.parametrize("status", ["completed", "stopped"])
def test_a_rank_that_dies_after_the_record_was_written_does_not_change_it(
    tmp_path: Path, status: str, tokenizer: Path
) -> None:
    corpus = tokenize_files([write_kind(tmp_path, "jsonl", TEXTS[:20])], tmp_path / "tokens", tokenizer)
    folder, failure = OutputFolder(tmp_path), Failure("lost_rank", "ended by SIGSEGV", rank=1)
    files, ran = FailureFiles(folder), replace(job(tmp_path), corpora=(corpus.manifest,))
    known = partial(described, ran, CPU(), 1)
    write_record(make_record({"status": status, "al_s": 0.25}), folder.record)
    files.write_record(failure, known)
    kept = read_record(folder.record)
    assert (kept.status, kept.al_s) == (status, 0.25)
    folder.record.unlink()
    files.write_record(failure, known)
    assert read_record(folder.record).unavailable["al_s"] == "the run failed (lost rank): rank 1: ended by SIGSEGV"


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EFBIG, "File too large"), RuntimeError("[enforce fail at inline_container.cc] iostream error")],
)
def test_the_shells_file_size_limit_is_named(tmp_path: Path, error: Exception) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, hard))
    try:
        found = diagnose(error, job(tmp_path), tmp_path / "rank_0.log")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (found.kind, found.exit_code) == ("mistake", 2)
    assert found.reason.startswith("a file would exceed the limit of 3.0 MB (ulimit -f): ")
