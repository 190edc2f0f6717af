"""The listeners of a fine-tuning: measurement, the log of its steps, and a request to stop."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback

from efficientbench.basics.errors import NonFiniteError
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics import EfficiencyCallback
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.record_parts import TimeSpent
from efficientbench.metrics.records.sinks.steplog import StepLog
from efficientbench.metrics.records.sinks.wandb_log import WandbLog


class Spent(TrainerCallback):
    """Sorts the wall time of a rank by the parts of `TimeSpent`: at any moment it counts for one of them.

    It stands behind the callback that measures, which waits for the device at the end of each step; `StepBegins` stands
    before it. What lies between two events belongs to the second one, such as a checkpoint to `on_save`.
    """

    def __init__(
        self, begin_s: float, warmup_steps: int, resumed: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with the set-up.

        Args:
            begin_s: when the run began, on `clock`.
            warmup_steps: first steps, which compile and fill caches.
            resumed: whether earlier attempts have taken time of which nothing is known here.
            clock: a monotonic clock in seconds.
        """
        self._clock, self._since_s, self._resumed = clock, begin_s, resumed
        # The first step of all compiles, however many the warm-up has.
        self._first_steps = max(1, warmup_steps)
        self._seconds = dict.fromkeys(TimeSpent.__dataclass_fields__, 0.0)
        self._between = "start_s"
        """What time between events counts for, unless an event says otherwise."""
        self._step_times_s: list[float] = []

    def step_begins(self) -> None:
        """Count the set-up, or later what the Trainer has waited for the step's examples, with an idle device."""
        self._count("start_s" if self._between == "start_s" else "data_wait_s")
        self._between = "rest_s"

    def evaluation_begins(self) -> None:
        """Count what came before a held-out loss; the Trainer has a callback for its end alone."""
        self._count(self._between)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._step_times_s.append(self._count("productive_s"))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self._count("evaluation_s" if logs and "eval_loss" in logs else self._between)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._count("evaluation_s")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._count("checkpoints_s")

    def saved(self) -> None:
        """Count what came after the last step: the weights are written and read back."""
        self._count("checkpoints_s")

    def spent(self) -> TimeSpent | None:
        """Return where the time until now went; None where there were earlier attempts."""
        self._count(self._between)
        if self._resumed:
            return None
        first, later = self._step_times_s[: self._first_steps], self._step_times_s[self._first_steps :]
        usual_s = statistics.median(later or first or [0.0])
        excess_s = sum(max(0.0, time_s - usual_s) for time_s in first)
        seconds = dict(self._seconds)
        seconds["productive_s"] -= excess_s
        seconds["first_steps_s"] += excess_s
        return TimeSpent(**seconds)

    def _count(self, part: str) -> float:
        """Count the time since the last event for a part, and return it, s."""
        now_s = self._clock()
        passed_s, self._since_s = now_s - self._since_s, now_s
        self._seconds[part] += passed_s
        return passed_s


class StepBegins(TrainerCallback):
    """Reports each step before the callback that measures synchronizes the ranks."""

    def __init__(self, spent: Spent) -> None:
        self._spent = spent

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._spent.step_begins()


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
