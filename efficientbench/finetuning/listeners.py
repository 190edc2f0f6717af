"""The listeners of a fine-tuning: measurement, the log of its steps, and a request to stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback

from efficientbench.finetuning.spent import Spent, StepBegins
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics import EfficiencyCallback
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.steplog import StepLog
from efficientbench.metrics.records.wandb_log import WandbLog
from efficientbench.training.errors import NonFiniteError

LINES = 20
"""Lines that a run prints while it trains."""


class Journal(TrainerCallback):
    """Writes each step and each held-out loss to `steps.jsonl`, and some to the terminal; of rank 0."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log: StepLog | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Before the first step the held-out loss was written already.
        self._open(state)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        log = self._open(state)
        if "loss" in logs and not torch.isfinite(torch.tensor(logs["loss"])):
            raise NonFiniteError(f"the loss of step {state.global_step} is {logs['loss']}", state.global_step, 0)
        if log is None:
            return
        if "eval_loss" in logs:
            log.write("evaluation", {"step": state.global_step, "loss": logs["eval_loss"]})
            print(f"step {state.global_step:,}: held-out loss {logs['eval_loss']:.4f}", flush=True)
        elif "loss" in logs:
            names = ("loss", "grad_norm", "learning_rate")
            tokens = {"tokens_trained": int(state.num_input_tokens_seen)}
            log.write("step", {"step": state.global_step, **{name: float(logs[name]) for name in names}, **tokens})
            if state.global_step % max(1, state.max_steps // LINES) == 0:
                rate = logs["learning_rate"]
                print(
                    f"step {state.global_step:,}/{state.max_steps:,}: loss {logs['loss']:.4f}, rate {rate:.2e}",
                    flush=True,
                )

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._log is not None:
            self._log.close()

    def _open(self, state: Any) -> StepLog | None:
        if self._log is None and state.is_world_process_zero:
            self._log = StepLog(self._path)
        return self._log


class DeepSpeedFile(TrainerCallback):
    """Writes DeepSpeed's configuration as it trains: 'auto' has become a figure; of rank 0."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # The Trainer has filled it in as it made the optimizer.
        if state.is_world_process_zero:
            # accelerate asks for no lines in the log by an infinite number of steps, which JSON lacks.
            given = {key: value for key, value in args.hf_deepspeed_config.config.items() if key != "steps_per_print"}
            write_whole(self._path, json.dumps(given, indent=2, allow_nan=False) + "\n")


class Stop(TrainerCallback):
    """Ends a training after the step in which any rank was asked to stop, with a checkpoint."""

    def __init__(self, requested: Callable[[], bool]) -> None:
        self._requested = requested
        self.stopped = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        asked = torch.tensor([float(self._requested())], device=args.device)
        if dist.is_initialized():
            dist.all_reduce(asked, dist.ReduceOp.MAX)
        if asked.item() and state.global_step < state.max_steps:
            self.stopped = True
            control.should_training_stop = control.should_save = True


class Heartbeat(TrainerCallback):
    """Writes step and phase into the heartbeat, by which the launcher distinguishes a hang from slow work."""

    def __init__(self, writer: HeartbeatWriter) -> None:
        self._writer = writer

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._writer.at(state.global_step + 1, "training")

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._writer.at(state.global_step, "after a validation")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._writer.at(state.global_step, "after a checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._writer.at(state.global_step, "after training")


class Sent(TrainerCallback):
    """Sends each step and each held-out loss to Weights & Biases, under the names of other trainings; of rank 0."""

    NAMES = {
        "loss": "train/loss",
        "grad_norm": "train/grad_norm",
        "learning_rate": "train/learning_rate",
        "eval_loss": "validation/loss",
    }

    def __init__(self, sink: WandbLog) -> None:
        self._sink = sink

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        values = {shown: float(logs[name]) for name, shown in self.NAMES.items() if name in logs}
        if values:
            self._sink.scalars("step", state.global_step, values)


def listeners(
    stop: Stop, monitor: EfficiencyCallback, spent: Spent, steps_file: Path, sink: WandbLog | None = None
) -> list[TrainerCallback]:
    """Return the callbacks in the order in which the Trainer must call them.

    Args:
        stop: set by a request to stop.
        monitor: measures.
        spent: counts where the wall time goes.
        steps_file: the Journal's.
        sink: gets what the Journal gets; None: there is none.
    """
    # The monitor pauses where a checkpoint follows, and only Stop knows of the last one.
    return [stop, StepBegins(spent), monitor, spent, Journal(steps_file), *([] if sink is None else [Sent(sink)])]
