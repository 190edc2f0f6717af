"""The recorder's files and what it keeps for the record, from events as a training loop sends them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from efficientbench.config.load import resolve
from efficientbench.metrics.records.record_parts import Mismatch, Rechecks
from efficientbench.metrics.records.sinks.steplog import read_steps
from efficientbench.running.output_folder import OutputFolder
from efficientbench.training.checkpoints.manifest import Manifest
from efficientbench.training.events import Event, RecheckEnded, Routing, StepEnded, ValidationEnded
from efficientbench.worker.listeners.recorder import Recorder


def step(number: int, routing: Routing | None) -> StepEnded:
    return StepEnded(number, 2.0, 1.0, 1e-3, 64, 64, skipped=False, routing=routing)


MEASURE: Any = SimpleNamespace(step_time_s=0.5, monitor=SimpleNamespace(latest_samples=list, closed_windows=int))


def record(name: str, folder: Path, events: Sequence[Event], *overrides: str) -> Recorder:
    recorder = Recorder(resolve(name, overrides=overrides), OutputFolder(folder), MEASURE)
    for event in events:
        recorder(event)
    recorder.close()
    return recorder


def test_routing_is_written_and_summed_over_the_measured_steps(tmp_path: Path) -> None:
    loads = [((4, 0), (2, 2)), ((1, 3), (2, 2)), ((2, 2), (4, 0))]
    events = [step(number, Routing(1.0 + number, load)) for number, load in enumerate(loads, start=1)]
    quality = record("moe_0.5Bx8", tmp_path, events, "measurement.warmup_steps=1").quality()
    assert (quality.tokens_per_expert, quality.auxiliary_loss) == (((3, 5), (6, 2)), pytest.approx(3.0))
    lines = read_steps(tmp_path / "steps.jsonl")
    assert lines[0]["load_imbalance_by_layer"] == [2, 1]
    assert [line["load_imbalance"] for line in lines] == [1.5, 1.25, 1.5]
    assert lines[2]["tokens_per_expert"] == [[2, 2], [4, 0]]
    assert (lines[1]["loss"], lines[1]["auxiliary_loss"]) == (2.0, 3.0)


def test_a_run_without_the_auxiliary_loss_gives_a_reason(tmp_path: Path) -> None:
    events = [step(1, Routing(None, ((1, 1),)))]
    quality = record("moe_0.5Bx8", tmp_path, events, "model.moe.auxiliary_loss=0").quality()
    assert quality.auxiliary_loss is None
    assert quality.reasons["auxiliary_loss"] == "model.moe.auxiliary_loss is 0: the run trained without it"
    rewarded = record("moe_0.5Bx8", tmp_path / "rl", events, "training.objective=rl", "rl.samples=8").quality()
    assert rewarded.reasons["auxiliary_loss"] == "rewards alone move weights: the run trained without it"


def test_a_dense_run_writes_no_routing(tmp_path: Path) -> None:
    quality = record("gqa_0.5B", tmp_path, [step(1, None)]).quality()
    assert "auxiliary_loss" not in {*quality.reasons, *read_steps(tmp_path / "steps.jsonl")[0]}


def test_a_standard_error_is_recorded_with_its_number_of_documents(tmp_path: Path) -> None:
    validation = ValidationEnded(1, 4.0, (3.9, 4.0, 4.1, 4.0), (16, 16, 16, 16), None, "0" * 64)
    recorder = record("gqa_0.5B", tmp_path, [step(1, None), validation])
    assert (recorder.validations[0].loss_se_values, recorder.quality().validation_loss_se_values) == (4, 4)


def test_losses_are_logged_over_tokens_and_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = OutputFolder(tmp_path)
    record("gqa_0.5B", tmp_path, [step(1, None), step(2, None)])
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("by_tokens/train_loss")] == [(64, 2.0), (128, 2.0)]
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2]


def test_rechecks_are_counted_over_all_attempts(tmp_path: Path) -> None:
    mismatch = Mismatch(2, 1, "host, cpu 0", "the loss")
    events = [step(1, None), RecheckEnded(1, ()), step(2, None), RecheckEnded(2, (mismatch,))]
    first = record("gqa_1.5B", tmp_path, events)
    assert first.rechecks == Rechecks(2, 1, [mismatch])
    assert first.interruptions == dict.fromkeys((2, 3), "the first step after a recheck")
    kept = json.loads(json.dumps(first.progress()))
    manifest = Manifest(2, False, "everything", {}, [], {}, "f", 0, 2.0, None, kept)
    second = Recorder(resolve("gqa_1.5B"), OutputFolder(tmp_path), MEASURE, manifest, lost_s=90.0)
    [*_, lost] = read_steps(tmp_path / "steps.jsonl")
    assert lost == {"kind": "lost", "step": 2, "lost_s": 90.0, "elapsed_s": kept["elapsed_s"] + 90.0}
    assert second.progress()["elapsed_s"] > lost["elapsed_s"]
    second(RecheckEnded(3, ()))
    second.close()
    assert second.rechecks == Rechecks(3, 1, [mismatch])
