"""The cost of generating with a run's model on one device: bounds by the roofline, and memory.

A batch is static: its rows begin with prompts of one length and are decoded together.
"""

from __future__ import annotations

import os
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from efficientbench.architecture.variant import UndeclaredError
from efficientbench.config.schema import RunConfig
from efficientbench.costs.compute import Works
from efficientbench.costs.generation import (
    cache_bytes_read,
    decode_work,
    experts_touched,
    largest_batch,
    prefill_work,
    weight_bytes_read,
)
from efficientbench.devices.registry import device_of_backend
from efficientbench.metrics.sensors.hardware import DeviceRates
from efficientbench.planning.step_time import Efficiency, work_time_s

REPETITIONS = 15
"""Measurements of a rate; the shortest time counts."""
METHOD = "a sum of large tensors"
"""The measured operation, for reports."""
CPUS = Path("/sys/devices/system/cpu")
"""Where Linux describes processors and their caches."""
SMALLEST_BYTES = 64 * 2**20
"""Smallest tensor, for small caches and where Linux does not report their size."""


def memory_bytes_s() -> float:
    """Return the bytes a second that torch reads and writes in memory with its present number of threads."""
    import torch

    large = torch.ones(tensor_bytes() // torch.float32.itemsize, dtype=torch.float32)
    return 2 * large.nbytes / shortest_s(lambda: torch.add(large, 1.0, out=large))


def tensor_bytes(cpus: Path = CPUS) -> int:
    """Return the bytes of a tensor that is four times as large as the level-3 caches of this process's processors.

    A smaller tensor would stay in the caches, and the measured rate would be theirs.
    """
    caches: dict[str, int] = {}
    for number in os.sched_getaffinity(0):
        cache = cpus / f"cpu{number}" / "cache" / "index3"
        # Linux has no file for a size that it does not know.
        if (cache / "size").exists() and (cache / "shared_cpu_list").exists():
            kibibytes = (cache / "size").read_text(encoding="ascii").strip().removesuffix("K")
            caches[(cache / "shared_cpu_list").read_text(encoding="ascii")] = int(kibibytes) * 1024
    return max(SMALLEST_BYTES, 4 * sum(caches.values()))


def shortest_s(work: Callable[[], object]) -> float:
    """Return the shortest of REPETITIONS times of `work`, in seconds."""
    work()  # allocates, and starts the threads
    return min(timeit.repeat(work, repeat=REPETITIONS, number=1))


CONTEXTS = (1024, 4096, 16384, 65536)
"""Prompt lengths, in tokens, for which the largest batch is computed."""
AT_THE_PEAKS = Efficiency(1, 1, 1, 1)


@dataclass(frozen=True)
class Bound:
    """Prefill of one batch, and the decoding step after it."""

    prompt_tokens: int
    batch: int
    prefill_flops: float
    decode_flops: float
    weight_bytes: float
    """Bytes of the weights that the decoding step reads."""
    cache_bytes: int
    """Bytes of all rows' caches that the decoding step reads."""
    prefill_s: float | None
    """The least time in seconds; None without a device's rates, like `decode_s`."""
    decode_s: float | None


@dataclass(frozen=True)
class GenerationPlan:
    """The bounds and the largest batches of one run's model."""

    name: str
    bounds: tuple[Bound, ...]
    largest: dict[int, int]
    """Prompt length in tokens → most prompts that a device computes and keeps at once; 0: not even one."""
    missing: dict[str, str]
    """Prompt or batch that is n/a → why."""


def plan_generation(
    config: RunConfig, prompts: Sequence[int], batches: Sequence[int], rates: DeviceRates | None
) -> GenerationPlan:
    """Return the bounds for each prompt length and each batch, and the largest batch for each of CONTEXTS.

    Args:
        config: the run's configuration; weights and cache have its dtype.
        prompts: prompt lengths in tokens.
        batches: batch sizes in rows.
        rates: the device's rates; None: no times and no largest batches.
    """
    bounds, largest, missing = [], {}, {}
    for prompt in prompts:
        try:
            _check_positions(config, prompt + 1)
            bounds += [_bound(config, prompt, batch, rates) for batch in batches]
        except UndeclaredError as error:
            missing[f"a prompt of {prompt:,} tokens"] = str(error)
    for context in CONTEXTS:
        if rates is None:
            break
        try:
            _check_positions(config, context)
            largest[context] = _largest_batch(config, context, rates)
        except UndeclaredError as error:
            missing[f"a batch of {context:,} tokens"] = str(error)
    return GenerationPlan(config.name, tuple(bounds), largest, missing)


def _check_positions(config: RunConfig, tokens: int) -> None:
    longest = config.model.position.longest
    if longest is not None and tokens > longest:
        raise UndeclaredError(f"the model has {longest:,} positions (model.position.kind={config.model.position.kind})")


def _bound(config: RunConfig, prompt: int, batch: int, rates: DeviceRates | None) -> Bound:
    model, dtype = config.model, config.training.dtype
    prefill = prefill_work(model, prompt, batch, dtype)
    decode = decode_work(model, prompt + 1, batch, dtype)
    return Bound(
        prompt_tokens=prompt,
        batch=batch,
        prefill_flops=_flops(prefill),
        decode_flops=_flops(decode),
        weight_bytes=weight_bytes_read(model, batch, dtype, experts_touched(model, batch)),
        cache_bytes=batch * cache_bytes_read(model, prompt + 1, dtype),
        prefill_s=_least_s(prefill, rates) if rates else None,
        decode_s=_least_s(decode, rates) if rates else None,
    )


def _flops(work: dict[str, Works]) -> float:
    return sum(each.flops for works in work.values() for each in works)


def _least_s(work: dict[str, Works], rates: DeviceRates) -> float:
    return sum(work_time_s(kind, works, rates, AT_THE_PEAKS) for kind, works in work.items())


def _largest_batch(config: RunConfig, context: int, rates: DeviceRates) -> int:
    if rates.memory_bytes is None:
        raise UndeclaredError("the device's name does not settle how much memory it has")
    free = int(rates.memory_bytes) - runtime_bytes(rates)
    return largest_batch(config.model, context, 0, config.training.dtype, free)


def runtime_bytes(rates: DeviceRates) -> int:
    """Return the memory that libraries take on the device, in bytes."""
    return device_of_backend(rates.backend).runtime_bytes
