"""Measures a user's own loop, and saves a record of it."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.monitoring import monitor


class EfficiencyMonitor(monitor.EfficiencyMonitor):
    """The monitor of `efficientbench.metrics`, whose measurement becomes a record for `report` and `compare`."""

    def start(self) -> None:
        """Open the sensors, take the idle baseline, start sampling."""
        self._started_at, self._started_s = datetime.now(timezone.utc), time.monotonic()
        super().start()

    def __enter__(self) -> EfficiencyMonitor:
        super().__enter__()
        return self

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
            seed: the run's seed, which distinguishes repeats; None: the one in the folder's name, else 0.

        Raises:
            MetricsError: no step was measured, or the record cannot be written; `save` may then be called again.
        """
        # Imported here, since measuring needs none of what records need.
        from efficientbench.metrics.monitoring.aggregate import merge
        from efficientbench.metrics.records.own_loop import OwnLoop, of_all_ranks, write_own_record

        measured, writes = of_all_ranks(self.finish())
        steps = len(measured[0].steps)
        if not steps:
            raise MetricsError("nothing to save: no step was measured; fewer warmup_steps, or more steps")
        if not writes:
            return None
        run, folder = merge(measured), Path(folder)
        sizes = seq_len, micro_batch_size, max(1, round(run.tokens / steps / seq_len))
        loop = OwnLoop.of(folder, sizes, dtype, seed, model, flops_per_token, peak_flops, measured)
        duration_s = time.monotonic() - self._started_s
        return write_own_record(folder, loop, run, len(measured), self._started_at, duration_s)
