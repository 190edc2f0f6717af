"""What listens to a fine-tuning, called as the Trainer calls it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from efficientbench.finetuning.listeners import Heartbeat, Spent, Stop, listeners
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics import EfficiencyCallback
from efficientbench.metrics.records.sinks.registry import Run, Sinks
from efficientbench.training.checkpoints.timing import TimeInterval

SAVING_S = 0.3


def test_the_checkpoint_of_a_stopped_run_is_not_measured(tmp_path: Path) -> None:
    monitor = EfficiencyCallback(tokens_per_step=1, warmup_steps=0, sensors=[])
    spent = Spent(time.monotonic(), 0)
    stop = Stop(lambda: True, TimeInterval(None), 0)
    sinks = Sinks({}, Run(tmp_path, "run"))
    callbacks = [DefaultFlowCallback, *listeners(stop, monitor, spent, tmp_path / "steps.jsonl", sinks)]
    handler = CallbackHandler(callbacks, None, None, None, None)
    args = TrainingArguments(output_dir=str(tmp_path), include_num_input_tokens_seen="all", save_strategy="no")
    state, control = TrainerState(max_steps=10), TrainerControl()
    control = handler.on_train_begin(args, state, control)
    control = handler.on_step_begin(args, state, control)
    state.global_step = 1
    control = handler.on_step_end(args, state, control)
    assert (control.should_training_stop, control.should_save) == (True, True)
    time.sleep(SAVING_S)
    control = handler.on_save(args, state, control)
    handler.on_train_end(args, state, control)
    assert monitor.run is not None
    ((begin_s, end_s),) = monitor.run.windows
    assert end_s - begin_s < SAVING_S
    found = spent.spent()
    assert found is not None
    assert found.checkpoints_s >= SAVING_S


def test_a_checkpoint_by_time_follows_the_warm_up(tmp_path: Path) -> None:
    handler = CallbackHandler([DefaultFlowCallback, Stop(lambda: False, TimeInterval(1e-9), 2)], None, None, None, None)
    args = TrainingArguments(output_dir=str(tmp_path), save_strategy="no")
    state, control = TrainerState(max_steps=10, global_step=5), TrainerControl()
    control = handler.on_train_begin(args, state, control)
    saved = []
    for state.global_step in (6, 7, 8):
        control = handler.on_step_end(args, state, control)
        saved += [state.global_step] if control.should_save else []
        control.should_save = False
    assert (saved, control.should_training_stop) == ([7, 8], False)


def test_each_micro_batch_of_a_step_counts_as_progress(tmp_path: Path) -> None:
    phases: list[tuple[int, str]] = []

    class Noted(HeartbeatWriter):
        def at(self, step: int, phase: str) -> None:
            phases.append((step, phase))

    handler = CallbackHandler([DefaultFlowCallback, Heartbeat(Noted())], None, None, None, None)
    args = TrainingArguments(output_dir=str(tmp_path))
    state, control = TrainerState(max_steps=10), TrainerControl()
    for _ in range(2):
        handler.on_step_begin(args, state, control)
        for _ in range(2):
            handler.on_substep_end(args, state, control)
        state.global_step += 1
    begun = ["training", "training, 1 micro-batch so far", "training, 2 micro-batches so far"]
    assert phases == [(step, phase) for step in (1, 2) for phase in begun]
