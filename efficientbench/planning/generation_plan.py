"""The cost of generating with a run's model on one device: bounds by the roofline, and memory.

A batch is static: its rows begin with prompts of one length and are decoded together.
"""

from __future__ import annotations

import os
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from efficientbench.architecture.variant import UndeclaredError
from efficientbench.config.quantization import Quantization
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
from efficientbench.devices.quantized import Form, form_of
from efficientbench.devices.registry import device_of_backend
from efficientbench.metrics.sensors.hardware import DeviceRates, device_rates
from efficientbench.planning.efficiency import Efficiency
from efficientbench.planning.plan import gigabytes
from efficientbench.planning.step_time import work_time_s
from efficientbench.planning.table import ABSENT, plain_table, print_tables

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
ROUNDED = (
    "Fewer bits: weights of the linear layers, packed, with scales and offsets, as this device's kernels store them; "
    "products at the dtype's peak. Fewer bytes are not less time by themselves: generate --measure says."
)


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
    """The bounds and the largest batches of one run's model, with weights of one width."""

    name: str
    """The run's name, and the width's where it is not the full one."""
    bounds: tuple[Bound, ...]
    largest: dict[int, int]
    """Prompt length in tokens → most prompts that a device computes and keeps at once; 0: not even one."""
    missing: dict[str, str]
    """Prompt or batch that is n/a → why."""


def plan_generation(
    config: RunConfig,
    prompts: Sequence[int],
    batches: Sequence[int],
    rates: DeviceRates | None,
    form: Form | None = None,
) -> GenerationPlan:
    """Return the bounds for each prompt length and each batch, and the largest batch for each of CONTEXTS.

    Args:
        config: the run's configuration; weights and cache have its dtype.
        prompts: prompt lengths in tokens.
        batches: batch sizes in rows.
        rates: the device's rates; None: no times and no largest batches.
        form: the form in which the device keeps the linear layers' weights; None: all weights are in the run's dtype.
    """
    bounds, largest, missing = [], {}, {}
    for prompt in prompts:
        try:
            _check_positions(config, prompt + 1)
            bounds += [_bound(config, prompt, batch, rates, form) for batch in batches]
        except UndeclaredError as error:
            missing[f"a prompt of {prompt:,} tokens"] = str(error)
    for context in CONTEXTS:
        if rates is None:
            break
        try:
            _check_positions(config, context)
            largest[context] = _largest_batch(config, context, rates, form)
        except UndeclaredError as error:
            missing[f"a batch of {context:,} tokens"] = str(error)
    name = config.name if form is None else f"{config.name} {form.quantization.name}"
    return GenerationPlan(name, tuple(bounds), largest, missing)


def _check_positions(config: RunConfig, tokens: int) -> None:
    longest = config.model.position.longest
    if longest is not None and tokens > longest:
        raise UndeclaredError(f"the model has {longest:,} positions (model.position.kind={config.model.position.kind})")


def _bound(config: RunConfig, prompt: int, batch: int, rates: DeviceRates | None, form: Form | None) -> Bound:
    model, dtype = config.model, config.training.dtype
    prefill = prefill_work(model, prompt, batch, dtype, form)
    decode = decode_work(model, prompt + 1, batch, dtype, form)
    return Bound(
        prompt_tokens=prompt,
        batch=batch,
        prefill_flops=_flops(prefill),
        decode_flops=_flops(decode),
        weight_bytes=weight_bytes_read(model, batch, dtype, experts_touched(model, batch), form),
        cache_bytes=batch * cache_bytes_read(model, prompt + 1, dtype),
        prefill_s=_least_s(prefill, rates) if rates else None,
        decode_s=_least_s(decode, rates) if rates else None,
    )


def _flops(work: dict[str, Works]) -> float:
    return sum(each.flops for works in work.values() for each in works)


def _least_s(work: dict[str, Works], rates: DeviceRates) -> float:
    return sum(work_time_s(kind, works, rates, AT_THE_PEAKS) for kind, works in work.items())


def _largest_batch(config: RunConfig, context: int, rates: DeviceRates, form: Form | None) -> int:
    if rates.memory_bytes is None:
        raise UndeclaredError("the device's name does not settle how much memory it has")
    free = int(rates.memory_bytes) - runtime_bytes(rates)
    return largest_batch(config.model, context, 0, config.training.dtype, free, form=form)


def runtime_bytes(rates: DeviceRates) -> int:
    """Return the memory that libraries take on the device, in bytes."""
    return device_of_backend(rates.backend).runtime_bytes


_COLUMNS = (
    *("prompt", "batch", "prefill TFLOP", "ms", "tokens/s"),
    *("step GFLOP", "weights MB", "cache MB", "ms", "tokens/s", "set by"),
)


def print_generation(
    configs: Sequence[RunConfig],
    prompts: Sequence[int],
    batches: Sequence[int],
    device: str | None,
    console: Console,
    widths: Sequence[Quantization | None] = (None,),
) -> None:
    """Print the bounds of each run, the largest batches, the reasons for n/a, and what the figures count.

    `widths`: those of the linear layers' weights, which need a device, whose kernels store them; None: the run's dtype.

    Raises:
        MetricsError: the table of devices lacks `device`, or its peak in a run's dtype.
        ConfigError: the device has no kernel for a width.
    """
    plans: list[tuple[GenerationPlan, DeviceRates | None]] = []
    for config in configs:
        rates = device_rates(device, config.training.dtype, config.measurement.peak_flops) if device else None
        for width in widths:
            form = None
            if width is not None and rates is not None:
                form = form_of(width, device_of_backend(rates.backend).type, config.training.dtype)
            plans.append((plan_generation(config, prompts, batches, rates, form), rates))
    largest = _largest([plan for plan, _ in plans]) if device is not None else None
    print_tables(console, (_bounds(plans), largest), [*_notes(configs[0], plans), *([ROUNDED] if any(widths) else [])])


def _bounds(plans: Sequence[tuple[GenerationPlan, DeviceRates | None]]) -> Table:
    rows = ((plan.name, *_row(bound, rates)) for plan, rates in plans for bound in plan.bounds)
    return plain_table("run", _COLUMNS, rows, "prefill of a batch, and the decoding step behind it")


def _row(bound: Bound, rates: DeviceRates | None) -> tuple[str, ...]:
    prefill, decode = bound.prefill_s, bound.decode_s
    return (
        f"{bound.prompt_tokens:,}",
        f"{bound.batch:,}",
        f"{bound.prefill_flops / 1e12:,.3g}",
        ABSENT if prefill is None else f"{prefill * 1e3:,.3g}",
        ABSENT if prefill is None else f"{bound.batch * bound.prompt_tokens / prefill:,.0f}",
        f"{bound.decode_flops / 1e9:,.3g}",
        f"{bound.weight_bytes / 1e6:,.1f}",
        f"{bound.cache_bytes / 1e6:,.1f}",
        ABSENT if decode is None else f"{decode * 1e3:,.3g}",
        ABSENT if decode is None else f"{bound.batch / decode:,.0f}",
        ABSENT if rates is None else _set_by(bound, rates),
    )


def _set_by(bound: Bound, rates: DeviceRates) -> str:
    """Return what bounds a decoding step: weights, cache or FLOPs, whichever takes most time."""
    times = {
        "weights": bound.weight_bytes / rates.memory_bytes_s,
        "cache": bound.cache_bytes / rates.memory_bytes_s,
        "FLOPs": bound.decode_flops / rates.peak_flops,
    }
    return max(times, key=times.__getitem__)


def _largest(plans: Sequence[GenerationPlan]) -> Table:
    rows = (
        (plan.name, *(f"{plan.largest[each]:,}" if each in plan.largest else ABSENT for each in CONTEXTS))
        for plan in plans
    )
    columns = [f"{context:,}" for context in CONTEXTS]
    return plain_table("run", columns, rows, "largest batch of prompts of so many tokens")


def _notes(first: RunConfig, plans: Sequence[tuple[GenerationPlan, DeviceRates | None]]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for plan, _ in plans:
        for what, why in plan.missing.items():
            reasons.setdefault(why, []).append(f"{plan.name}, {what}")
    for why, lacking in reasons.items():
        yield f"n/a {'; '.join(lacking)}: {why}"
    yield (
        f"Bounds for one device and a static batch in {first.training.dtype}: weights and cache are moved once, of "
        "experts those that a token reaches in expectation. Launches, temporary tensors and sampling come on top. They "
        "are no figures of vLLM's or SGLang's."
    )
    rates = plans[0][1]
    if rates is None:
        yield "times, largest batch: n/a; --device NAME, like --device 'H100 SXM', gives them"
        return
    held = ABSENT if rates.memory_bytes is None else gigabytes(rates.memory_bytes)
    yield (
        f"{rates.name}: {rates.peak_flops / 1e12:g} TFLOP/s, {rates.memory_bytes_s / 1e12:g} TB/s, {held}; "
        f"{rates.sources[0]}. The largest batch: weights, caches, {gigabytes(runtime_bytes(rates))} of libraries, and "
        "by estimate a layer's tensors for all prompts at once"
    )
