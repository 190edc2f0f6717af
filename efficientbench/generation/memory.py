"""The memory of a batch: whether the batch fits into the device, and the largest batch that does."""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.architecture.variant import known
from efficientbench.basics.cgroup import memory_limit_bytes
from efficientbench.config.schema import RunConfig
from efficientbench.costs.generation import generation_bytes, largest_batch
from efficientbench.devices.base import Device
from efficientbench.devices.quantized import Form
from efficientbench.planning.plan import gigabytes


@dataclass(frozen=True)
class Case:
    """The lengths and the batch size of one row of a measurement."""

    prompt_tokens: int
    batch: int
    max_new_tokens: int
    """New tokens of each sequence, 2 or more in a measurement: the prefill computes the first."""

    @property
    def tokens(self) -> int:
        """Return the tokens of a complete sequence."""
        return self.prompt_tokens + self.max_new_tokens


def usable_bytes(device: Device, ranks: int = 1) -> int:
    """Return the memory for a rank's tensors: the device's, or a share of the host's, less the runtime's own."""
    capacity_bytes = device.memory_capacity_bytes()
    return (memory_limit_bytes() // ranks if capacity_bytes is None else capacity_bytes) - device.runtime_bytes


def too_large(config: RunConfig, case: Case, usable: int, form: Form | None) -> str | None:
    """Return why a batch does not fit into `usable` bytes, with the largest that does; None if it fits or may fit.

    `form`, here and below: that of quantized weights; None: all are in the dtype of the training.
    """
    sizes = (case.prompt_tokens, case.max_new_tokens, case.batch, config.training.dtype)
    needed = known(lambda: generation_bytes(config.model, *sizes, config.parallel.tp, form))
    if needed is None or needed <= usable:
        return None
    return (
        f"out of memory: weights, caches and prompts of {case.batch:,} sequences of {case.tokens:,} tokens need about "
        f"{gigabytes(needed)} of {gigabytes(usable)}; {batch_that_fits(config, case, usable, form)}"
    )


def batch_that_fits(config: RunConfig, case: Case, usable: int, form: Form | None) -> str:
    """Return a hint with the largest `--batch` that fits into `usable` bytes by the formulas."""
    sizes = (case.prompt_tokens, case.max_new_tokens, config.training.dtype)
    most = known(lambda: largest_batch(config.model, *sizes, usable, config.parallel.tp, form))
    if most is None:
        return "a smaller --batch may fit"
    # A device that ran out of memory holds less than the formulas say: never suggest the batch that failed.
    most = min(most, case.batch - 1)
    return f"--batch {most} would fit" if most > 0 else "not even one sequence fits"
