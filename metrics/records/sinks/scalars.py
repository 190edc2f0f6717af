"""The scalars of a step that runs and loops of one's own send under the same names."""

from __future__ import annotations

from collections.abc import Sequence

from efficientbench.metrics.formulas.definitions import BYTES_PER_GB
from efficientbench.metrics.sensors.base import Sample


def in_use(samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    """Return the memory of the device that uses most, bytes, and the power of all, W; None where nothing reads it."""
    used_bytes = max((s.memory_used_bytes for s in samples if s.memory_used_bytes is not None), default=None)
    powers_w = [sample.power_w for sample in samples if sample.power_w is not None]
    return used_bytes, sum(powers_w) if powers_w else None


def step_scalars(step_time_s: float, tokens: int, samples: Sequence[Sample]) -> dict[str, float | None]:
    """Return a step's time, throughput, memory and power, by the names of TensorBoard."""
    used_bytes, power_w = in_use(samples)
    return {
        "efficiency/step_time_s": step_time_s,
        "efficiency/tokens_per_s": tokens / step_time_s,
        "memory/used_gb": used_bytes / BYTES_PER_GB if used_bytes is not None else None,
        "energy/power_w": power_w,
    }
