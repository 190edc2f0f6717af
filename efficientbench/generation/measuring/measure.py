"""Measure prefill and decoding of one batch after another with the monitor that measures training.

Prompts are random tokens, the same for every model with the same vocabulary. No stop token ends a sequence, so that
every step computes the full batch.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from efficientbench.architecture.variant import known, missing
from efficientbench.config.schema import RunConfig
from efficientbench.costs.generation import decode_bytes
from efficientbench.devices.base import Device
from efficientbench.devices.quantized import Form
from efficientbench.generation.decoder import Decoder, Forward, compiled_step, reach
from efficientbench.generation.generate import Row, next_tokens
from efficientbench.generation.memory import Case
from efficientbench.generation.sampling import Sampling
from efficientbench.metrics import AllocatorSensor, EfficiencyMonitor, merge
from efficientbench.metrics.formulas.definitions import percentiles
from efficientbench.metrics.monitoring.measurement import RunMeasurement
from efficientbench.metrics.monitoring.sensor_registry import device_sensors
from efficientbench.metrics.records.figure import average
from efficientbench.metrics.records.generation.generation import GenerationRow, Phase, RowFigures
from efficientbench.metrics.records.generation.generation_facts import PhaseMeasured, RowMeasured, figures_of
from efficientbench.metrics.sensors.base import Sensor

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

GREEDY = Sampling()


@dataclass(frozen=True)
class Setting:
    """The settings that all rows of a measurement share."""

    model: GPT
    config: RunConfig
    device: Device
    peak_bytes_s: float | None
    """The device's peak memory bandwidth, bytes/s; None if it is not known."""
    peak_source: str
    """The source of the peak bandwidth, or why it is not known."""
    repeats: int = 5
    """The fewest measured repeats of each phase, after one of warm-up."""
    compiled: bool = False
    """Whether decoding steps are compiled; prefill is not."""
    form: Form | None = None
    """The form of quantized weights; None: the model's are in its dtype."""
    least_s: float = 2.0
    """The least total time of a phase's measured steps, since power is sampled only a few times a second."""

    def enough(self, times_s: Sequence[Sequence[float]]) -> bool:
        """Return whether these repeats, without the warm-up, suffice."""
        return len(times_s) >= self.repeats and math.fsum(map(math.fsum, times_s)) >= self.least_s


@dataclass
class _Prefilled:
    """The times of the prefill phase, and the last repeat's cache, from which decoding starts."""

    forward_s: list[list[float]] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    decoder: Decoder | None = None
    tokens: list[int] = field(default_factory=list)


def measure(setting: Setting, case: Case) -> tuple[GenerationRow, RunMeasurement]:
    """Measure one row; return the row and the measurement of its decoding.

    Raises:
        GenerationError: the model computed NaN or infinity.
    """
    rows = [Row(number) for number in range(case.batch)]
    step = compiled_step(setting.model) if setting.compiled else None
    _release(setting.device)
    with _monitor(setting, warmup_steps=1) as monitor:
        prefilled = _prefill(setting, case, monitor, rows, step)
    prefill = merge([monitor.finish()])
    _release(setting.device)
    assert prefilled.decoder is not None
    with prefilled.decoder.bound():
        # The first continuation is warm-up, which compiles the steps; only there may counting the experts cost time.
        with _experts_touched(setting.model) as touched:
            _continue(setting, case, prefilled, rows)
        with _monitor(setting) as monitor:
            times_s: list[list[float]] = []
            while not setting.enough(times_s):
                times_s.append(_continue(setting, case, prefilled, rows, monitor))
    decode = merge([monitor.finish()])
    experts = average([float(each) for each in touched]) if touched else None
    steps_s = [time_s for repeat in times_s for time_s in repeat]
    figures = _row(setting, case, prefilled, decode, average(steps_s), experts)
    row = GenerationRow(
        **figures_of(RowFigures, figures),
        prompt_tokens=case.prompt_tokens,
        batch=case.batch,
        max_new_tokens=case.max_new_tokens,
        prefill=_phase(prefill, prefilled.forward_s, case.batch * case.prompt_tokens),
        decode=_phase(decode, times_s, case.batch),
    )
    return row, decode


def _release(device: Device) -> None:
    """Return the memory of earlier tensors to the driver, which counts as used what torch's allocator caches."""
    allocator = device.allocator()
    if allocator is not None:
        allocator.empty_cache()


def prompts_of(case: Case, vocabulary: int) -> list[list[int]]:
    """Return random prompts, which are the same in every measurement."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (case.batch, case.prompt_tokens), generator=generator).tolist()


def _prefill(
    setting: Setting, case: Case, monitor: EfficiencyMonitor, rows: Sequence[Row], step: Forward | None
) -> _Prefilled:
    prompts = prompts_of(case, setting.config.model.vocab_size)
    done = _Prefilled()
    warm = False
    while not setting.enough(done.forward_s):
        # Before the next cache is allocated.
        done.decoder = None
        monitor.begin_step()
        done.decoder = Decoder(setting.model, prompts, case.max_new_tokens, step)
        with done.decoder.bound():
            # Wait for the zeros that fill the new cache.
            setting.device.synchronize()
            begin_s = time.perf_counter()
            logits = done.decoder.prefill()
            setting.device.synchronize()
            forward_s = time.perf_counter() - begin_s
            done.tokens = next_tokens(logits, rows, GREEDY, 0)
        first_token_s = monitor.end_step(case.batch * case.prompt_tokens)
        if warm:
            done.forward_s.append([forward_s])
            done.first_token_s.append(first_token_s)
        warm = True
    return done


def _continue(
    setting: Setting, case: Case, prefilled: _Prefilled, rows: Sequence[Row], monitor: EfficiencyMonitor | None = None
) -> list[float]:
    """Decode from the end of the prompts to the last token; return the step times, s, none without a monitor."""
    decoder, tokens, times_s = prefilled.decoder, prefilled.tokens, []
    assert decoder is not None
    decoder.rewind()
    for number in range(1, case.max_new_tokens):
        if monitor is not None:
            monitor.begin_step()
        tokens = next_tokens(decoder.step(tokens), rows, GREEDY, number)
        if monitor is not None:
            times_s.append(monitor.end_step(case.batch))
    return times_s


def _row(
    setting: Setting, case: Case, prefilled: _Prefilled, decode: RunMeasurement, step_s: float, experts: float | None
) -> RowMeasured:
    model, dtype = setting.config.model, setting.config.training.dtype
    lengths = range(case.prompt_tokens + 1, case.tokens)

    def mean_bytes(reached: bool) -> float:
        tokens = (reach(length, case.tokens) if reached else length for length in lengths)
        return float(average([decode_bytes(model, each, case.batch, dtype, experts, setting.form) for each in tokens]))

    assert prefilled.decoder is not None
    return RowMeasured(
        run=decode,
        first_token_s=prefilled.first_token_s,
        cache_bytes=prefilled.decoder.cache.bytes // case.batch,
        tokens=case.tokens,
        step_s=step_s,
        needed_bytes=known(lambda: mean_bytes(reached=False)),
        read_bytes=known(lambda: mean_bytes(reached=True)),
        unknown=missing(lambda: mean_bytes(reached=True)) or "",
        peak_bytes_s=setting.peak_bytes_s,
        peak_source=setting.peak_source,
        experts_touched=experts,
    )


def _phase(run: RunMeasurement, times_s: Sequence[Sequence[float]], tokens: int) -> Phase:
    steps_s = [time_s for repeat in times_s for time_s in repeat]
    return Phase(
        **figures_of(Phase, PhaseMeasured(run, times_s, tokens)),
        repeats=len(times_s),
        steps=len(steps_s),
        time_percentiles_s=percentiles(steps_s),
        samples=run.samples,
        energy_doubt=run.energy_doubt,
        disturbances=list(run.disturbances),
    )


def _monitor(setting: Setting, warmup_steps: int = 0) -> EfficiencyMonitor:
    device, measurement = setting.device, setting.config.measurement
    sensors: list[Sensor] = device_sensors(device.type, [0], [os.getpid()]) if measurement.enabled else []
    allocator = device.allocator()
    if allocator is not None:
        sensors.append(AllocatorSensor(allocator, 0, device.names()[0]))
    return EfficiencyMonitor(
        sensors,
        device.synchronize,
        warmup_steps=warmup_steps,
        sample_interval_s=measurement.sample_interval_s,
    )


@contextlib.contextmanager
def _experts_touched(model: GPT) -> Iterator[list[torch.Tensor]]:
    """Count the experts that get a token, one entry per MoE layer and forward pass; no entries without experts."""
    from efficientbench.model.moe import Router

    touched: list[torch.Tensor] = []
    routers = [module for module in model.modules() if isinstance(module, Router)]
    hooks = [
        router.register_forward_hook(lambda module, given, routed: touched.append(routed[1].any(dim=0).sum()))
        for router in routers
    ]
    try:
        yield touched
    finally:
        for hook in hooks:
            hook.remove()
