"""Measures a `transformers.Trainer` as a callback."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from transformers import TrainerCallback

from efficientbench.metrics.errors import MetricsError
from efficientbench.metrics.monitoring.aggregate import merge
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.metrics.monitoring.measurement import RankMeasurement, RunMeasurement, describe
from efficientbench.metrics.monitoring.monitor import EfficiencyMonitor
from efficientbench.metrics.monitoring.sensor_registry import local_sensors
from efficientbench.metrics.sensors.base import Sensor
from efficientbench.metrics.sensors.host import host_uuid


class EfficiencyCallback(TrainerCallback):
    """Times optimizer steps and samples sensors; evaluation and checkpoints lie outside the window.

    Each rank of a distributed run has one; their measurements are merged at the end of training.

    Args:
        tokens_per_step: trained on in one optimizer step by all ranks together. By default the Trainer's own count,
            which needs `include_num_input_tokens_seen` in its arguments.
        warmup_steps: the first steps, which run but are not measured.
        sensors: by default `local_sensors`: the process's accelerator, else the host.
    """

    def __init__(
        self, tokens_per_step: int | None = None, warmup_steps: int = 2, sensors: Sequence[Sensor] | None = None
    ) -> None:
        self.run: RunMeasurement | None = None
        """The measurement, once training has ended."""
        self._tokens_per_step = tokens_per_step
        self._warmup_steps = warmup_steps
        self._sensors = sensors
        self._monitor = EfficiencyMonitor(())
        self._tokens_seen = 0

    def summary(self) -> str:
        """Return the measurement in a few lines of text."""
        if self.run is None:
            raise MetricsError("nothing is measured before training has ended")
        return describe(self.run)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._tokens_per_step is None and args.include_num_input_tokens_seen in ("no", False):
            raise MetricsError(
                "the Trainer does not count tokens: set include_num_input_tokens_seen='all' in TrainingArguments, or "
                "give EfficiencyCallback(tokens_per_step=…)"
            )
        places = _gathered((host_uuid(), os.getpid()), tuple[str, int])
        pids = [pid for host, pid in places if host == host_uuid()]
        # Of a training that was stopped and restarts, as `auto_find_batch_size` does with a smaller batch.
        self._monitor.close()
        self._monitor = EfficiencyMonitor(
            local_sensors(pids) if self._sensors is None else self._sensors,
            barrier=dist.barrier if _is_distributed() else None,
            warmup_steps=self._warmup_steps,
            rank=args.process_index,
            steps_before=state.global_step,
        )
        self._tokens_seen = state.num_input_tokens_seen
        self._monitor.start()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._monitor.resume()
        self._monitor.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        tokens = self._tokens_per_step
        if tokens is None:
            tokens, self._tokens_seen = state.num_input_tokens_seen - self._tokens_seen, state.num_input_tokens_seen
        self._monitor.end_step(tokens if state.is_world_process_zero else 0)
        self._pause_for_others(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._pause_for_others(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        run = merge(_gathered(self._monitor.finish(), RankMeasurement))
        # A Trainer calls back only then, so that the first reading is not that of an idle device.
        unavailable = {"memory_idle_gb": "the monitor starts after the model was built"} | run.unavailable
        self.run = replace(run, memory_idle_gb=None, unavailable=unavailable)

    def _pause_for_others(self, control: Any) -> None:
        # The Trainer calls on_evaluate and on_save only afterwards, but decides before.
        if control.should_evaluate or control.should_save:
            self._monitor.pause()


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _gathered(mine: Any, kind: Any) -> list[Any]:
    """Return the values of all ranks, in order."""
    return gather(mine, kind) if _is_distributed() else [mine]
