"""Tables of the cost of generation, for one run's model or for all runs of the matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from efficientbench.config.schema import RunConfig
from efficientbench.metrics.sensors.hardware import DeviceRates, device_rates
from efficientbench.planning.generation_plan import CONTEXTS, Bound, GenerationPlan, plan_generation, runtime_bytes
from efficientbench.planning.plan import gigabytes
from efficientbench.planning.plan_table import of_each_run
from efficientbench.planning.table import ABSENT, plain_table, print_tables
from efficientbench.planning.vocabulary import resolve_run

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
) -> None:
    """Print the bounds of each run, the largest batches, the reasons for n/a, and what the figures count.

    Raises MetricsError: the table of devices lacks `device`, or its peak in a run's dtype.
    """
    plans: list[tuple[GenerationPlan, DeviceRates | None]] = []
    for config in configs:
        rates = device_rates(device, config.training.dtype, config.measurement.peak_flops) if device else None
        plans.append((plan_generation(config, prompts, batches, rates), rates))
    largest = _largest([plan for plan, _ in plans]) if device is not None else None
    print_tables(console, (_bounds(plans), largest), _notes(configs[0], plans))


def matrix_configs(overrides: Sequence[str], smoke: bool) -> tuple[list[RunConfig], list[str]]:
    """Return the configurations of all runs of the matrix, and a line for each run that the overrides do not fit.

    Raises ConfigError: the overrides fit no run.
    """
    return of_each_run(lambda name: resolve_run(name, smoke, overrides)[0])


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
