"""Measures a user's own loop, and saves a record of it."""

from __future__ import annotations

import atexit
import operator
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.monitoring import monitor
from efficientbench.metrics.monitoring.measurement import RankMeasurement

if TYPE_CHECKING:
    from efficientbench.metrics.records.facts import Validation
    from efficientbench.metrics.records.record import Status
    from efficientbench.metrics.records.sinks.registry import Sinks


class EfficiencyMonitor(monitor.EfficiencyMonitor):
    """The monitor of `efficientbench.metrics`, whose measurement becomes a record for `report` and `compare`."""

    _sinks: tuple[Sinks, ...] = ()
    _status: Status = "completed"
    _error: str | None = None
    """What ended the loop, where its status is failed."""

    def send_to(self, *sinks: str, name: str, config: Any = None) -> None:
        """Send each step's time, tokens/s, memory and power, and each validation's loss; `save` sends the figures.

        One rank calls it, whose tokens and devices are sent.

        Args:
            sinks: 'tensorboard:FOLDER', 'wandb:PROJECT', 'prometheus:PORT' (or HOST:PORT, or the folder of
                node_exporter's textfile collector).
            name: the run's name there.
            config: what the loop was configured with, as in `save`; W&B has it.

        Raises MetricsError: there is no such sink, or it cannot be opened.
        """
        from efficientbench.metrics.records.own_loop import plain
        from efficientbench.metrics.records.sinks.registry import Run, Sinks, named

        run = Run(Path.cwd(), name, plain(config)[0])
        # Each by itself: there may be several of a kind.
        for targets in [named([word]) for word in sinks]:
            opened = Sinks(targets, run)
            atexit.register(opened.close)
            self._sinks += (opened,)

    def start(self) -> None:
        """Open the sensors, take the idle baseline, start sampling."""
        self._started_at, self._started_s = datetime.now(timezone.utc), time.monotonic()
        self._tokens = 0
        self._validations: list[Validation] = []
        super().start()

    def __enter__(self) -> EfficiencyMonitor:
        super().__enter__()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            super().__exit__(kind, error, trace)
            return
        measuring = self._state == "started"
        # What was measured until an error, or Ctrl-C, can be saved.
        self.abandon()
        if measuring and isinstance(error, Exception):
            self._status, self._error = "failed", f"{type(error).__name__}: {error}"

    def abandon(self) -> None:
        """Stop sampling after an error, as the monitor of runs does; the record then says that the loop was stopped."""
        if self._state == "started":
            self._status = "stopped"
        super().abandon()

    def end_step(self, tokens: int) -> float:
        """End the training step, as the monitor of runs does; return its time, s."""
        step_time_s = super().end_step(tokens)
        self._tokens += operator.index(tokens)
        if self._sinks:
            from efficientbench.metrics.records.sinks.registry import step_scalars

            values = step_scalars(step_time_s, operator.index(tokens), self.latest_samples())
            for each in self._sinks:
                each.scalars(self._step_number, {"train/tokens": self._tokens, **values})
        return step_time_s

    @property
    def _step_number(self) -> int:
        return self._steps_before + self._steps_run

    def validated(self, loss: float) -> None:
        """Note a validation after the steps so far: a point of the record's quality curve.

        Every rank calls it, between two steps or after the last one; rank 0's loss is recorded. The measured window
        closes here until the next step. A second call after the same step replaces the first.

        Args:
            loss: mean validation loss of a token, nats.

        Raises MetricsError: no step has ended yet, one has not ended, or the loss is no number or below 0.
        """
        from efficientbench.metrics.records.facts import Validation

        try:
            loss = float(loss)
        except (TypeError, ValueError):
            raise MetricsError(f"validation_loss: a number is needed, it is: {loss!r:.60}") from None
        if loss < 0:
            raise MetricsError(f"validation_loss={loss:g}: the mean loss of a token, in nats, is not below 0")
        if self._step_begin_s is not None or not self._steps_run:
            raise MetricsError("a validation is noted between two steps or after the last one: call end_step first")
        if self._state == "started":
            self._close_window()
        step = self._step_number
        self._validations = [each for each in self._validations if each.step < step]
        # Without curve: nobody knows the tokens of an earlier attempt's steps.
        tokens = 0 if self._steps_before else self._tokens, self.measured_tokens()
        self._validations.append(Validation(step, *tokens, loss, loss_se=None, windows=self.closed_windows()))
        for each in self._sinks:
            each.scalars(step, {"validation/loss": loss})
            each.by_tokens(self._tokens, "validation_loss", loss)

    def save(
        self,
        folder: str | Path,
        *,
        seq_len: int,
        micro_batch_size: int,
        model: Any = None,
        flops_per_token: float | None = None,
        dtype: Any = None,
        peak_flops: float | None = None,
        seed: int | None = None,
        validation_loss: float | None = None,
        config: Any = None,
        variant: str | None = None,
        size: str | None = None,
    ) -> Path | None:
        """Write `record.json` into a folder, which `efficientbench report` and `compare` read; return its path.

        In a program of torch.distributed every rank calls it; rank 0 writes, and the others get None.

        Args:
            folder: the folder of this run alone; its name is the run's. Repeats lie in `NAME/seed_1`, `NAME/seed_2`, …
            seq_len: tokens of a sequence.
            micro_batch_size: sequences of one forward and backward pass on one rank.
            model: a torch module, for parameters, dtype and its own count of FLOPs; None: the record lacks them.
            flops_per_token: FLOPs of one token, forward and backward, for MFU; None: the model's own count.
            dtype: the dtype of the matrix products, 'bf16', 'fp16', 'fp32' or torch's; None: that of the model's
                parameters. Where it is not known, the record says so.
            peak_flops: dense FLOP/s of one device, where the table of devices lacks it.
            seed: the run's seed, which distinguishes repeats; None: the one in `config`, in the folder's name, else 0.
            validation_loss: mean loss of a token on held-out text after the last step, nats, as `validated` takes it.
            config: what the loop was configured with, a mapping or an object with attributes, of which `compare` names
                what differs. Repeats differ in nothing but its `seed`.
            variant: the architectural choice that the run stands for; None: the run's name.
            size: the model's size, such as '50M', by which reports set it beside others; None: 'own'.

        Raises:
            MetricsError: no step was measured, a value is none that a record can hold, or the record cannot be written;
                `save` may then be called again.

        The record of a loop that an error ended says `failed`, with the error in `failure.json` beside it, and that of
        one that Ctrl-C or `abandon` ended `stopped`.
        """
        # Imported here, since measuring needs none of what records need.
        from efficientbench.metrics.monitoring.aggregate import merge
        from efficientbench.metrics.records.own_loop import (
            OwnLoop,
            check_flops,
            plain,
            write_failure,
            write_own_record,
        )
        from efficientbench.metrics.records.record import read_record

        mine = self.finish()
        if not mine.steps:
            raise MetricsError("nothing to save: no step was measured; fewer warmup_steps, or more steps")
        if validation_loss is not None:
            self.validated(validation_loss)
        measured, validations, writes = of_all_ranks(mine, self._validations)
        if not writes:
            return None
        run, folder, (given, configured_seed) = merge(measured), Path(folder), plain(config)
        # Tokens may be counted without padding, but each rank has at least one micro-batch.
        batch = max(micro_batch_size * len(measured), round(run.tokens / len(mine.steps) / max(1, seq_len)))
        sizes = seq_len, micro_batch_size, batch
        check_flops(flops_per_token, peak_flops)
        seed = configured_seed if seed is None else seed
        loop = OwnLoop.of(folder, sizes, dtype, seed, model, flops_per_token, peak_flops, measured)
        loop = replace(loop, variant=variant, size=size)
        duration_s = time.monotonic() - self._started_s
        path = write_own_record(
            folder, loop, run, len(measured), self._started_at, duration_s, validations, given, self._status
        )
        write_failure(folder, self._error, self._step_number)
        for each in self._sinks:
            each.figures(read_record(path))
            each.close()
            atexit.unregister(each.close)
        self._sinks = ()
        return path


def of_all_ranks(
    mine: RankMeasurement, validations: Sequence[Validation]
) -> tuple[list[RankMeasurement], list[Validation], bool]:
    """Return all ranks' measurements, the validations, and whether this rank writes; all ranks call this together.

    A validation's loss is rank 0's, its tokens are those of all ranks. Raises MetricsError: the ranks noted validations
    after different steps.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return [mine], list(validations), True
    from efficientbench.metrics.monitoring.exchange import gather
    from efficientbench.metrics.records.facts import Validation

    found = gather((mine, list(validations)), tuple[RankMeasurement, list[Validation]])
    return (
        [measured for measured, _ in found],
        together([noted for _, noted in found]),
        torch.distributed.get_rank() == 0,
    )


def together(ranks: Sequence[Sequence[Validation]]) -> list[Validation]:
    """Return the first rank's validations with the tokens of all ranks.

    Raises MetricsError: the ranks noted validations after different steps.
    """
    steps = [[each.step for each in noted] for noted in ranks]
    other = next((number for number, each in enumerate(steps) if each != steps[0]), None)
    if other is not None:
        raise MetricsError(
            f"rank 0 noted validations after the steps {steps[0]}, and rank {other} after {steps[other]}: every rank "
            "calls `validated` after the same steps"
        )
    same_steps = zip(*ranks, strict=True)
    tokens = ((sum(each.tokens for each in same), sum(each.measured_tokens for each in same)) for same in same_steps)
    return [
        replace(noted, tokens=seen, measured_tokens=measured)
        for noted, (seen, measured) in zip(ranks[0], tokens, strict=True)
    ]
