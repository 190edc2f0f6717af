"""The listeners of a fine-tuning: wall time, log of steps, W&B, heartbeat, and requests to stop."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import NonFiniteError
from efficientbench.basics.language import in_users_language
from efficientbench.launchers.processes.heartbeat import HeartbeatWriter
from efficientbench.metrics import EfficiencyCallback
from efficientbench.metrics.files import write_whole
from efficientbench.metrics.records.record_parts import TimeSpent
from efficientbench.metrics.records.sinks.registry import Sinks
from efficientbench.metrics.records.sinks.steplog import StepLog
from efficientbench.training.checkpoints.timing import TimeInterval

logger = logging.getLogger(__name__)


class Spent(TrainerCallback):
    """Divides a rank's wall time among the parts of `TimeSpent`, without gap or overlap.

    It runs after the callback that measures, which waits for the device at the end of each step; `StepBegins` runs
    before that callback. The time between two events counts for the second one: a checkpoint for `on_save`.
    """

    def __init__(
        self,
        begin_s: float,
        warmup_steps: int,
        earlier: Mapping[str, Any] | None = None,
        lost_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the set-up.

        Args:
            begin_s: this attempt's start on `clock`.
            warmup_steps: the number of first steps, which compile and fill caches.
            earlier: the `progress` that the checkpoint to resume from holds; None: the run starts at step 1.
            lost_s: how long earlier attempts worked after that checkpoint.
            clock: a monotonic clock in seconds.
        """
        self._clock, self._since_s = clock, begin_s
        # The first step compiles even if there are no warm-up steps.
        self._first_steps = max(1, warmup_steps)
        kept = (earlier or {}).get("goodput", {})
        self._is_known = earlier is None or bool(kept)
        self._seconds = dict.fromkeys(TimeSpent.__dataclass_fields__, 0.0) | kept
        self._seconds["restarts_s"] += lost_s
        self._elapsed_begin_s = begin_s - lost_s - elapsed_of(earlier)
        self._between = "start_s" if earlier is None else "restarts_s"
        """The part for which time between events counts by default."""
        self._step_times_s: list[float] = []

    @property
    def elapsed_s(self) -> float:
        """Return the time of all attempts so far, s."""
        return self._clock() - self._elapsed_begin_s

    def progress(self) -> dict[str, Any]:
        """Return the state that the next attempt resumes from, as plain data, in the middle of a checkpoint."""
        self._count("checkpoints_s")
        known = {"goodput": self._by_part()} if self._is_known else {}
        return {**known, "elapsed_s": self.elapsed_s}

    def step_begins(self) -> None:
        """Count the set-up, or from the second step on the wait for examples, during which the device idles."""
        self._count("data_wait_s" if self._between == "rest_s" else self._between)
        self._between = "rest_s"

    def evaluation_begins(self) -> None:
        """Count the time before a validation; the Trainer has a callback only for its end."""
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
        """Count the time after the last step, in which the weights are saved and verified."""
        self._count("checkpoints_s")

    def spent(self) -> TimeSpent | None:
        """Return the wall time so far by part; None if earlier attempts' times are not known."""
        self._count(self._between)
        return TimeSpent(**self._by_part()) if self._is_known else None

    def _by_part(self) -> dict[str, float]:
        first, later = self._step_times_s[: self._first_steps], self._step_times_s[self._first_steps :]
        return TimeSpent.first_steps_apart(self._seconds, first, later)

    def _count(self, part: str) -> float:
        """Count the time since the last event for a part; return that time, s."""
        now_s = self._clock()
        passed_s, self._since_s = now_s - self._since_s, now_s
        self._seconds[part] += passed_s
        return passed_s


def elapsed_of(progress: Mapping[str, Any] | None) -> float:
    """Return the elapsed time in a checkpoint's `Spent.progress`, s; 0 without a checkpoint, or in an older one."""
    return float((progress or {}).get("elapsed_s", 0.0))


class StepBegins(TrainerCallback):
    """Reports the beginning of each step to `Spent`, before the callback that measures synchronizes the ranks."""

    def __init__(self, spent: Spent) -> None:
        self._spent = spent

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._spent.step_begins()


LINES = 20
"""The approximate number of progress lines that a run prints."""


class Journal(TrainerCallback):
    """Writes each step and held-out loss to `steps.jsonl` on rank 0, and prints some of them."""

    def __init__(self, path: Path, spent: Spent) -> None:
        self._path, self._spent = path, spent
        self._log: StepLog | None = None

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        log = self._open(state)
        if "loss" in logs and not torch.isfinite(torch.tensor(logs["loss"])):
            raise NonFiniteError(f"the loss of step {state.global_step} is {logs['loss']}", state.global_step, 0)
        if log is None:
            return
        if "eval_loss" in logs:
            elapsed = {"elapsed_s": self._spent.elapsed_s}
            log.write("evaluation", {"step": state.global_step, "loss": logs["eval_loss"], **elapsed})
            line = f"step {state.global_step:,}: held-out loss {logs['eval_loss']:.4f}"
            print(in_users_language(line), flush=True)
        elif "loss" in logs:
            names = ("loss", "grad_norm", "learning_rate")
            read = {"tokens_trained": int(state.num_input_tokens_seen), "elapsed_s": self._spent.elapsed_s}
            log.write("step", {"step": state.global_step, **{name: float(logs[name]) for name in names}, **read})
            if state.global_step % max(1, state.max_steps // LINES) == 0:
                rate = logs["learning_rate"]
                line = f"step {state.global_step:,}/{state.max_steps:,}: loss {logs['loss']:.4f}, rate {rate:.2e}"
                print(in_users_language(line), flush=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._log is not None:
            self._log.close()

    def _open(self, state: Any) -> StepLog | None:
        if self._log is None and state.is_world_process_zero:
            self._log = StepLog(self._path)
        return self._log


class DeepSpeedFile(TrainerCallback):
    """Writes DeepSpeed's effective configuration on rank 0, with numbers in place of 'auto'."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # The Trainer replaced 'auto' when it made the optimizer.
        if state.is_world_process_zero:
            # accelerate disables DeepSpeed's log lines by an infinite number of steps, which JSON lacks.
            given = {key: value for key, value in args.hf_deepspeed_config.config.items() if key != "steps_per_print"}
            write_whole(self._path, json.dumps(given, indent=2, allow_nan=False) + "\n")


class Stop(TrainerCallback):
    """Stops the training with a checkpoint after the step in which any rank was asked to stop.

    Also saves one where rank 0's clock says that it is due by time, after the warm-up of the attempt.
    """

    def __init__(self, requested: Callable[[], bool], by_time: TimeInterval, warmup_steps: int) -> None:
        self._requested, self.by_time, self._warmup_steps = requested, by_time, warmup_steps
        self._first_step = 0
        self.stopped = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._first_step = state.global_step
        if state.is_world_process_zero:
            logger.info(self.by_time.announcement(max(1, self._first_step + self._warmup_steps)))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        measures = state.global_step >= self._first_step + self._warmup_steps
        due = state.is_world_process_zero and measures and self.by_time.is_due()
        asked = torch.tensor([float(self._requested()), float(due)], device=args.device)
        if dist.is_initialized():
            dist.all_reduce(asked, dist.ReduceOp.MAX)
        stop, save = asked.tolist()
        if stop and state.global_step < state.max_steps:
            self.stopped = True
            control.should_training_stop = control.should_save = True
        control.should_save |= bool(save)
        self.by_time.begins()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # The Trainer validates before it saves.
        self.by_time.begins()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.by_time.ends(saved=True)
        if state.is_world_process_zero:
            bound_s = self.by_time.bound_s
            logger.info(
                f"checkpoint after step {state.global_step}; the next is due after {bound_s:,.4g} s at the latest"
            )


class Heartbeat(TrainerCallback):
    """Writes step and phase into the heartbeat, by which the launcher tells a hang from slow work."""

    def __init__(self, writer: HeartbeatWriter) -> None:
        self._writer = writer
        self._micro_batches = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._micro_batches = 0
        self._writer.at(state.global_step + 1, "training")

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._micro_batches += 1
        self._writer.at(state.global_step + 1, f"training, {number_of(self._micro_batches, 'micro-batch')} so far")

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._writer.at(state.global_step, "after a validation")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._writer.at(state.global_step, "after a checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._writer.at(state.global_step, "after training")


class Sent(TrainerCallback):
    """Sends each step and held-out loss to the sinks of rank 0, under the names that pretraining uses."""

    NAMES = {
        "loss": "train/loss",
        "grad_norm": "train/grad_norm",
        "learning_rate": "train/learning_rate",
        "eval_loss": "validation/loss",
        **{name: name for name in ("efficiency/tokens_per_s", "efficiency/step_time_s")},
    }

    def __init__(self, sinks: Sinks) -> None:
        self._sinks = sinks

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        values = {shown: float(logs[name]) for name, shown in self.NAMES.items() if name in logs}
        if values:
            self._sinks.scalars(state.global_step, values)


def listeners(
    stop: Stop, monitor: EfficiencyCallback, spent: Spent, steps_file: Path, sinks: Sinks
) -> list[TrainerCallback]:
    """Return the callbacks in the order in which the Trainer must call them; `steps_file` is the Journal's."""
    # `stop` first: the monitor pauses for checkpoints, and only `stop` knows of the one after a request to stop.
    return [stop, StepBegins(spent), monitor, spent, Journal(steps_file, spent), Sent(sinks)]
