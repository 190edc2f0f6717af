"""Trace the last steps of a run with torch.profiler."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efficientbench.config.schema import MeasurementConfig
from efficientbench.profiling.trace import OPTIMIZER, STEP
from efficientbench.training.events import Event, StepEnded, StepStarted

if TYPE_CHECKING:
    from efficientbench.training.trainer import Trainer


class Profiler:
    """Starts torch.profiler before the first traced step, and writes the trace after the last one."""

    def __init__(self, first: int, last: int, path: Path) -> None:
        """`first`, `last`: the first and last step to trace, counted from 1; `path`: the trace's file, `.json.gz`."""
        self.first, self.last, self.path = first, last, path
        self._profiler: Any = None
        self._step: Any = None

    @classmethod
    def of(cls, measurement: MeasurementConfig, steps: int, path: Path) -> Profiler | None:
        """Return the profiler of a run of `steps` steps; None where the configuration traces none."""
        traced = measurement.profile_steps
        return cls(max(steps - traced, 0) + 1, steps, path) if traced else None

    def attach(self, trainer: Trainer) -> None:
        """Mark the optimizer's part of a step in the trace.

        Megatron's optimizer does more than torch's, which alone torch.profiler would mark.
        """
        trainer.optimizer.step = _named(trainer.optimizer.step)  # type: ignore[method-assign]
        if trainer.queued is not None:
            trainer.queued.norm = _named(trainer.queued.norm)  # type: ignore[method-assign]
            trainer.queued.update = _named(trainer.queued.update)  # type: ignore[method-assign]
        for stage in trainer.stages:
            stage.zero_grad_buffer = _named(stage.zero_grad_buffer)

    def __call__(self, event: Event) -> None:
        from torch.profiler import profile, record_function

        if isinstance(event, StepStarted) and self.first <= event.step <= self.last:
            if self._profiler is None:
                self._profiler = profile()
                self._profiler.start()
            self._step = record_function(STEP)
            self._step.__enter__()
        elif isinstance(event, StepEnded) and self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
        elif self._profiler is not None:
            # The first event after the last traced step.
            self._finish()

    def _finish(self) -> None:
        self._profiler.stop()
        # torch compresses by the file's ending, so that the temporary name must end as the final one does.
        beside = self.path.with_name(f"partial_{self.path.name}")
        self._profiler.export_chrome_trace(str(beside))
        os.replace(beside, self.path)
        self._profiler = None


def _named(work: Callable[..., Any]) -> Callable[..., Any]:
    from torch.profiler import record_function

    def named(*arguments: Any, **options: Any) -> Any:
        with record_function(OPTIMIZER):
            return work(*arguments, **options)

    return named
