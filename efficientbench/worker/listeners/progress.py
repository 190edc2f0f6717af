"""Show the progress of a run: a live bar on a terminal, lines on the console, and every step in the log."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from efficientbench.basics.language import in_users_language
from efficientbench.config.training import TrainingConfig
from efficientbench.metrics.formulas.definitions import flops_utilization
from efficientbench.training.events import (
    CheckpointEnded,
    CheckpointStarted,
    Event,
    RecheckEnded,
    RecheckStarted,
    StepEnded,
    StepStarted,
    TrainingEnded,
    ValidationEnded,
    ValidationStarted,
)
from efficientbench.worker.listeners.monitoring import Measure

logger = logging.getLogger(__name__)

PRINT_INTERVAL_S = 2.0
"""Least time between two lines on the console; the log file has every step."""


class ProgressDisplay:
    """Rank 0's display. A terminal gets a live bar below the lines; a file gets the lines alone."""

    def __init__(
        self,
        training: TrainingConfig,
        steps: int,
        measure: Measure,
        flops_per_token: float | None,
        peak_flops: float | None,
        steps_before: int = 0,
    ) -> None:
        """Prepare the bar, which starts with the first step.

        Args:
            training: the run's training configuration.
            steps: steps of the run, over all attempts.
            measure: knows this rank's step times and memory.
            flops_per_token: FLOPs that training a token takes, for the MFU; None where no formula gives them.
            peak_flops: FLOP/s of all devices together; None where it is not known.
            steps_before: steps that earlier attempts of the run have trained.
        """
        self.training, self.steps, self.measure, self.steps_before = training, steps, measure, steps_before
        self.flops_per_token, self.peak_flops = flops_per_token, peak_flops
        self.console = Console()
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=steps)
        self._begin_s = self._checkpoint_begin_s = time.monotonic()
        self._printed_s = float("-inf")

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepStarted) and event.step == self.steps_before + 1:
            self._begin_s = time.monotonic()
            self.bar.start()
        elif isinstance(event, StepEnded):
            state, times = self._state(event), self._times(event.step)
            self.bar.update(self.task, completed=event.step, description=f"loss {event.loss:.3f}")
            logger.info(" | ".join([*state, *times]))
            # A terminal's bar already has the times.
            parts = state if self.console.is_terminal else [*state, *times]
            self._print(" | ".join(parts), always=event.step in (self.steps_before + 1, self.steps))
        elif isinstance(event, RecheckStarted):
            self.bar.update(self.task, description="rechecking")
        elif isinstance(event, RecheckEnded):
            for mismatch in event.mismatches:
                line = f"warning: {mismatch}"
                logger.warning(line)
                self._print(line, always=True)
        elif isinstance(event, ValidationStarted):
            self.bar.update(self.task, description="validating")
        elif isinstance(event, ValidationEnded):
            line = f"validation after step {event.step}: loss {event.loss:.4f} over {event.tokens:,} tokens"
            logger.info(line)
            self._print(line, always=True)
        elif isinstance(event, CheckpointStarted):
            self._checkpoint_begin_s = time.monotonic()
            self.bar.update(self.task, description="saving")
        elif isinstance(event, CheckpointEnded):
            how = "begun, training waited" if event.still_writing else "written in"
            bound = "" if event.bound_s is None else f"; the next is due after {event.bound_s:,.4g} s at the latest"
            held_up_s = time.monotonic() - self._checkpoint_begin_s
            logger.info(f"checkpoint after step {event.step}: {how} {held_up_s:.2f} s{bound}")
        elif isinstance(event, TrainingEnded):
            self.close()
            if not event.stopped and event.steps < self.steps:
                line = f"ends after step {event.steps} of {self.steps}: it has measured for as long as it may"
                logger.info(line)
                self._print(line, always=True)

    def close(self) -> None:
        """Remove the bar from the terminal."""
        self.bar.stop()

    def _print(self, line: str, always: bool) -> None:
        if always or time.monotonic() - self._printed_s >= PRINT_INTERVAL_S:
            self._printed_s = time.monotonic()
            # A terminal wraps messages between words; a file gets each message on one line.
            told = in_users_language(line)
            self.console.print(told, highlight=False, soft_wrap=not self.console.is_terminal)

    def _times(self, step: int) -> list[str]:
        elapsed_s = time.monotonic() - self._begin_s
        left_s = elapsed_s / (step - self.steps_before) * (self.steps - step)
        return [f"elapsed {_clock(elapsed_s)}", f"ETA {_clock(left_s)}"]

    def _state(self, event: StepEnded) -> list[str]:
        step_time_s = self.measure.step_time_s
        tokens_per_s = event.tokens / step_time_s
        memory = [s.memory_used_bytes for s in self.measure.monitor.latest_samples() if s.memory_used_bytes is not None]
        mfu = "n/a"
        if self.peak_flops is not None and self.flops_per_token is not None:
            flops = self.flops_per_token * event.tokens
            mfu = f"{flops_utilization(flops, step_time_s, 1, self.peak_flops):.1%}"
        peak = self.training.learning_rate * self.training.lr_scale
        norm = f"{event.gradient_norm:.3f}" if event.gradient_norm is not None else "n/a"
        return [
            f"step {event.step}/{self.steps}",
            f"loss {event.loss:.4f}" + _skipped(event),
            *([f"aux {event.routing.auxiliary_loss:.3f}"] if event.routing and event.routing.auxiliary_loss else []),
            f"lr {event.learning_rate:.2e} ×{event.learning_rate / peak:.2f}",
            f"{step_time_s * 1e3:,.0f} ms",
            f"{tokens_per_s:,.0f} tok/s",
            f"MFU {mfu}",
            f"mem {max(memory) / 1e9:.2f} GB" if memory else "mem n/a",
            f"grad {norm}",
        ]


def _skipped(event: StepEnded) -> str:
    return f" (skipped: {event.non_finite or 'fp16 overflow'})" if event.skipped else ""


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
