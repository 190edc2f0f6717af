"""Whether a batch fits into the device's memory, and the largest that does."""

from __future__ import annotations

from efficientbench.config.schema import RunConfig
from efficientbench.config.variant import known
from efficientbench.costs.generation import generation_bytes, largest_batch
from efficientbench.devices.base import Device
from efficientbench.generation.case import Case
from efficientbench.metrics.cgroup import memory_limit_bytes
from efficientbench.planning.plan import gigabytes


def usable_bytes(device: Device) -> int:
    """Return the memory of the device, or of the host where it computes, beside what a process takes."""
    capacity_bytes = device.memory_capacity_bytes()
    return (memory_limit_bytes() if capacity_bytes is None else capacity_bytes) - device.runtime_bytes


def too_large(config: RunConfig, case: Case, usable: int) -> str | None:
    """Return why a batch does not fit into so many bytes, with the largest that does; None where it fits, or may."""
    dtype = config.training.dtype
    needed = known(lambda: generation_bytes(config.model, case.prompt_tokens, case.max_new_tokens, case.batch, dtype))
    if needed is None or needed <= usable:
        return None
    return (
        f"out of memory: weights, caches and prompts of {case.batch:,} sequences of {case.tokens:,} tokens need about "
        f"{gigabytes(needed)} of {gigabytes(usable)}; {batch_that_fits(config, case, usable)}"
    )


def batch_that_fits(config: RunConfig, case: Case, usable: int) -> str:
    """Return the option with the largest batch that fits into so many bytes by the formulas, for a message."""
    sizes = (case.prompt_tokens, case.max_new_tokens, config.training.dtype)
    most = known(lambda: largest_batch(config.model, *sizes, usable))
    if most is None:
        return "a smaller --batch may fit"
    # What a device has told is full holds less than the formulas say: the batch that failed is never the answer.
    most = min(most, case.batch - 1)
    return f"--batch {most} would fit" if most > 0 else "not even one sequence fits"
