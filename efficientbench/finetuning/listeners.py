"""What listens to a fine-tuning: measurement, the log of its steps, and a request to stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback

from efficientbench.metrics import EfficiencyCallback
from efficientbench.metrics.records.steplog import StepLog
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


def listeners(stop: Stop, monitor: EfficiencyCallback, steps_file: Path) -> list[TrainerCallback]:
    """Return the callbacks in the order in which the Trainer must call them; `steps_file`: the Journal's."""
    # The monitor pauses where a checkpoint follows, and only Stop knows of the last one.
    return [stop, monitor, Journal(steps_file)]
