"""Measures a `transformers.Trainer` as a callback, and writes a record of it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import TrainerCallback
from transformers.trainer_callback import DefaultFlowCallback

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.monitoring.aggregate import merge
from efficientbench.metrics.monitoring.exchange import gather
from efficientbench.metrics.monitoring.measurement import RankMeasurement, RunMeasurement, describe
from efficientbench.metrics.monitoring.monitor import EfficiencyMonitor
from efficientbench.metrics.monitoring.sensor_registry import local_sensors
from efficientbench.metrics.records.facts import Validation
from efficientbench.metrics.records.own_loop import OwnLoop, check_flops, write_own_record
from efficientbench.metrics.sensors.base import Sensor
from efficientbench.metrics.sensors.host import host_uuid


class EfficiencyCallback(TrainerCallback):
    """Times optimizer steps and samples sensors; evaluation and checkpoints lie outside the window.

    Each rank of a distributed run has a callback; their measurements are merged at the end of training. The callback
    adds `efficiency/tokens_per_s` and `efficiency/step_time_s` since the last log to the Trainer's logs; `attach` makes
    the Trainer's loggers write them too. The record's validations are the Trainer's `eval_loss`, that of
    `trainer.evaluate()` after the training too.

    Args:
        tokens_per_step: tokens that all ranks together train on in one optimizer step. By default the Trainer's own
            count, which needs `include_num_input_tokens_seen` in its arguments.
        warmup_steps: the first steps, which run but are not measured.
        sensors: what to sample; by default `local_sensors`: the process's accelerator, else the host.
        output: the folder of this run alone, which gets a `record.json` for `efficientbench report` and `compare` when
            training ends; its name is the run's. None: no record.
        flops_per_token: FLOPs of one token, forward and backward, for the record's MFU; None: the model's own count.
        peak_flops: dense FLOP/s of one device, where the table of devices lacks it.
        meters: meters to read beside the sensors, as `package.module:NAME` or an entry point's name; one process of
            each host reads them.
    """

    def __init__(
        self,
        tokens_per_step: int | None = None,
        warmup_steps: int = 2,
        sensors: Sequence[Sensor] | None = None,
        output: str | Path | None = None,
        flops_per_token: float | None = None,
        peak_flops: float | None = None,
        meters: Sequence[str] = (),
    ) -> None:
        check_flops(flops_per_token, peak_flops)
        self.run: RunMeasurement | None = None
        """The measurement, once training has ended."""
        self._tokens_per_step = tokens_per_step
        self._warmup_steps = warmup_steps
        self._sensors = sensors
        self._meters = meters
        self._output = None if output is None else Path(output)
        self._flops_per_token, self._peak_flops = flops_per_token, peak_flops
        self._monitor = EfficiencyMonitor(())
        self._measured: list[RankMeasurement] = []
        self._validations: list[Validation] = []
        self._tokens_seen = 0
        self._since_log: list[tuple[float, int]] = []
        """Time and tokens of each step since the last log."""

    def summary(self) -> str:
        """Return the measurement in a few lines of text."""
        if self.run is None:
            raise MetricsError("nothing is measured before training has ended")
        return describe(self.run)

    def attach(self, trainer: Any) -> None:
        """Add the callback to a Trainer before its loggers, so that TensorBoard and others write what it adds to logs.

        Use it instead of the Trainer's argument `callbacks`, whose entries come after the loggers.
        """
        callbacks = trainer.callback_handler.callbacks
        # DefaultFlowCallback decides on evaluation and checkpoints, which `on_step_end` has to know.
        flow = next(place for place, each in enumerate(callbacks) if isinstance(each, DefaultFlowCallback))
        callbacks.insert(flow + 1, self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._tokens_per_step is None and args.include_num_input_tokens_seen in ("no", False):
            raise MetricsError(
                "the Trainer does not count tokens: set include_num_input_tokens_seen='all' in TrainingArguments, or "
                "give EfficiencyCallback(tokens_per_step=…)"
            )
        places = _gathered((host_uuid(), os.getpid()), tuple[str, int])
        pids = [pid for host, pid in places if host == host_uuid()]
        # A training may stop and restart: `auto_find_batch_size` does so with a smaller batch.
        self._monitor.close()
        self._monitor = EfficiencyMonitor(
            local_sensors(pids) if self._sensors is None else self._sensors,
            barrier=dist.barrier if _is_distributed() else None,
            warmup_steps=self._warmup_steps,
            meters=self._meters if os.getpid() == pids[0] else (),
            rank=args.process_index,
            steps_before=state.global_step,
        )
        self._tokens_seen, self._since_log = state.num_input_tokens_seen, []
        self.run, self._validations = None, []
        self._started_at, self._started_s = datetime.now(timezone.utc), time.monotonic()
        self._monitor.start()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._monitor.resume()
        self._monitor.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        tokens = self._tokens_per_step
        if tokens is None:
            tokens, self._tokens_seen = state.num_input_tokens_seen - self._tokens_seen, state.num_input_tokens_seen
        step_time_s = self._monitor.end_step(tokens if state.is_world_process_zero else 0)
        self._since_log.append((step_time_s, tokens))
        self._pause_for_others(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not self._since_log or logs is None or "loss" not in logs:
            return
        time_s = math.fsum(step_time_s for step_time_s, _ in self._since_log)
        logs["efficiency/tokens_per_s"] = sum(tokens for _, tokens in self._since_log) / time_s
        logs["efficiency/step_time_s"] = time_s / len(self._since_log)
        self._since_log = []

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # A stream's data may run out within a step's micro-batches, and the step begins again.
        self._monitor.drop_step()
        self._tokens_seen = state.num_input_tokens_seen
        self._pause_for_others(control)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, model: Any = None, **_: Any
    ) -> None:
        loss, step = metrics.get("eval_loss"), state.global_step
        seen = state.num_input_tokens_seen if self._tokens_per_step is None else self._tokens_per_step * step
        # The model may be another than that of the last step by now: the best one.
        other = self.run is not None and args.load_best_model_at_end
        if loss is None or not seen or other or (self._validations and self._validations[-1].step >= step):
            return
        tokens, windows = (seen, self._monitor.measured_tokens()), self._monitor.closed_windows()
        self._validations.append(Validation(step, *tokens, loss, loss_se=None, windows=windows))
        if self.run is not None:
            self._write(args, state, model)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._measured = _gathered(self._monitor.finish(), RankMeasurement)
        run = merge(self._measured)
        # A Trainer first calls back with its model built, so that the first reading is not an idle device's.
        unavailable = {"memory_idle_gb": "the monitor starts after the model was built"} | run.unavailable
        self.run = replace(run, memory_idle_gb=None, unavailable=unavailable)
        self._duration_s = time.monotonic() - self._started_s
        self._write(args, state, model)

    def _write(self, args: Any, state: Any, model: Any) -> None:
        """Write the record on rank 0, where one is asked for and a step was measured; replace an earlier one."""
        assert self.run is not None
        if self._output is None or not state.is_world_process_zero or not self.run.step_times_s:
            return
        run, batch = self.run, args.train_batch_size * args.world_size * args.gradient_accumulation_steps
        # Sequences may differ in length: the record has their mean.
        sizes = max(1, round(run.tokens / len(run.step_times_s) / batch)), args.train_batch_size, batch
        dtype = "bf16" if args.bf16 else "fp16" if args.fp16 else None
        loop = OwnLoop.of(
            self._output, sizes, dtype, args.seed, model, self._flops_per_token, self._peak_flops, self._measured
        )
        write_own_record(
            self._output, loop, run, len(self._measured), self._started_at, self._duration_s, self._validations
        )

    def _pause_for_others(self, control: Any) -> None:
        # The Trainer calls on_evaluate and on_save only after that work, but decides on it before.
        if control.should_evaluate or control.should_save:
            self._monitor.pause()


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _gathered(mine: Any, kind: Any) -> list[Any]:
    """Return the values of all ranks, in rank order."""
    return gather(mine, kind) if _is_distributed() else [mine]
