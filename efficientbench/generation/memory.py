"""The memory of a batch: does it fit into the device, and what is the largest that does?"""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.architecture.variant import known
from efficientbench.basics.cgroup import memory_limit_bytes
from efficientbench.config.schema import RunConfig
from efficientbench.costs.generation import generation_bytes, largest_batch
from efficientbench.devices.base import Device
from efficientbench.planning.plan import gigabytes


@dataclass(frozen=True)
class Case:
    """One row of a measurement."""

    prompt_tokens: int
    batch: int
    max_new_tokens: int
    """2 or more: the first comes with the prefill."""

    @property
    def tokens(self) -> int:
        """Return the tokens of a sequence at its end."""
        return self.prompt_tokens + self.max_new_tokens


def usable_bytes(device: Device, ranks: int = 1) -> int:
    """Return the memory beside what a process takes: of the device, or of the host, which so many ranks share."""
    capacity_bytes = device.memory_capacity_bytes()
    return (memory_limit_bytes() // ranks if capacity_bytes is None else capacity_bytes) - device.runtime_bytes


def too_large(config: RunConfig, case: Case, usable: int) -> str | None:
    """Return why a batch does not fit into so many bytes, with the largest that does; None where it fits, or may."""
    sizes = (case.prompt_tokens, case.max_new_tokens, case.batch, config.training.dtype)
    needed = known(lambda: generation_bytes(config.model, *sizes, config.parallel.tp))
    if needed is None or needed <= usable:
        return None
    return (
        f"out of memory: weights, caches and prompts of {case.batch:,} sequences of {case.tokens:,} tokens need about "
        f"{gigabytes(needed)} of {gigabytes(usable)}; {batch_that_fits(config, case, usable)}"
    )


def batch_that_fits(config: RunConfig, case: Case, usable: int) -> str:
    """Return the option with the largest batch that fits into so many bytes by the formulas, for a message."""
    sizes = (case.prompt_tokens, case.max_new_tokens, config.training.dtype)
    most = known(lambda: largest_batch(config.model, *sizes, usable, config.parallel.tp))
    if most is None:
        return "a smaller --batch may fit"
    # What a device has reported as full holds less than the formulas say: the batch that failed is never the answer.
    most = min(most, case.batch - 1)
    return f"--batch {most} would fit" if most > 0 else "not even one sequence fits"


def lack_of_memory(config: RunConfig, case: Case, usable: int) -> str:
    """Return what to say where so many bytes have not sufficed."""
    return f"out of memory with {case.batch} prompts at once: {batch_that_fits(config, case, usable)}"
