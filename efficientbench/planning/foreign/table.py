"""The table that compares models of config.json files with each other and with our runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from efficientbench.architecture.variant import known
from efficientbench.config.layout import Layout
from efficientbench.config.parallel import ParallelConfig
from efficientbench.config.schema import KernelsConfig, RunConfig
from efficientbench.costs.compute import Works, micro_batch_work
from efficientbench.costs.generation import decode_work, generation_bytes
from efficientbench.costs.memory import memory_by_stage
from efficientbench.costs.model import (
    STATE_TOKENS,
    cache_bytes,
    count_parameters,
    flops_per_token,
    kv_cache_bytes_per_token,
)
from efficientbench.devices.base import Device
from efficientbench.devices.registry import all_devices, device_of_backend
from efficientbench.metrics.sensors.hardware import DeviceRates, device_rates
from efficientbench.planning.efficiency import Efficiency, has_experts, reached_by
from efficientbench.planning.foreign import decoder
from efficientbench.planning.foreign.read import is_configuration, shape_of_file
from efficientbench.planning.plan import gigabytes
from efficientbench.planning.step_time import work_time_s
from efficientbench.planning.table import ABSENT, plain_table, print_lines
from efficientbench.planning.vocabulary import resolve_run

SEQUENCE = 4096
"""Tokens of the sequences that are trained on, unless the user sets training.seq_len."""
CONTEXT = 32_768
"""Tokens of the sequence that is decoded."""
DTYPE = "bf16"
_PEAKS = Efficiency(1, 1, 1, 1)


@dataclass(frozen=True)
class Row:
    """The figures of one model; None for one that has no formula."""

    name: str
    parameters: int | None
    active: int | None
    flops: int | None
    """Training FLOPs per token."""
    added_bytes: int | None
    states: tuple[int | None, ...]
    """Bytes of a sequence's state at each of STATE_TOKENS."""
    training_bytes: int | None
    generation_bytes: int | None
    tokens_s: float | None
    """Projected tokens a second of training on one device."""
    decode_s: float | None
    """The least time of a decoded token."""
    experts: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Where:
    """The device that rows are planned for."""

    device: Device
    rates: DeviceRates | None

    def training_s(self, work: dict[str, Works], experts: bool) -> float | None:
        """Return the projected time of works of a model with experts, or a dense one; None without rates."""
        return None if self.rates is None else self.seconds(work, reached_by(self.rates.name, experts).efficiency)

    def seconds(self, work: dict[str, Works], efficiency: Efficiency) -> float | None:
        """Return the time of works one after another; None without a device's rates."""
        if self.rates is None:
            return None
        return sum(work_time_s(kind, works, self.rates, efficiency) for kind, works in work.items())


def print_models(words: Sequence[str], overrides: Sequence[str], smoke: bool, device: str | None) -> None:
    """Print one table of models: config.json files, their folders, and names of our runs.

    Raises ConfigError: a file is not counted, or a run is unknown. Raises MetricsError: the device is unknown.
    """
    rates = device_rates(device, DTYPE) if device else None
    where = Where(device_of_backend(rates.backend) if rates else all_devices()[0], rates)
    given = [word.partition("=")[2] for word in overrides if word.partition("=")[0] in ("training.seq_len", "seq_len")]
    seq_len = int(given[-1]) if given and given[-1].isdecimal() and int(given[-1]) else SEQUENCE
    rows = []
    for word in words:
        if is_configuration(word):
            path = Path(word)
            label = path.parent.name if path.suffix == ".json" else path.name
            rows.append(foreign_row(label or word, shape_of_file(path), seq_len, where))
        else:
            sized = [*overrides, f"training.seq_len={seq_len}"]
            rows.append(own_row(resolve_run(word, smoke, sized)[0], seq_len, where))
    columns = ["parameters", "active", "FLOPs/token", "B a token adds"]
    columns += [f"MB at {tokens // 1024}k" for tokens in STATE_TOKENS]
    columns += ["training GB", "generation GB", *(["tokens/s", "ms a token"] if rates else [])]
    console = Console(width=240, highlight=False, soft_wrap=True)
    console.print(plain_table("model", columns, [_cells(row, rates) for row in rows], "models, planned"))
    print_lines(
        console, [*(f"{row.name}: {note}" for row in rows for note in row.notes), *_notes(rows, seq_len, where)]
    )


def foreign_row(name: str, shape: decoder.DecoderShape, seq_len: int, where: Where) -> Row:
    """Return the row of a configuration's shapes; `seq_len`: tokens of the sequences of training."""
    kernels, runtime = KernelsConfig(fused=where.device.fuses()), where.device.runtime_bytes
    step_s = where.training_s(decoder.training_work(shape, seq_len, kernels), shape.parameters != shape.active)
    return Row(
        name=name if name == shape.model_type else f"{name} ({shape.model_type})",
        parameters=shape.parameters,
        active=shape.active,
        flops=shape.flops(seq_len).training,
        added_bytes=shape.added_bytes(decoder.BF16_BYTES),
        states=tuple(shape.cache_bytes(tokens, decoder.BF16_BYTES) for tokens in STATE_TOKENS),
        training_bytes=decoder.training_memory(shape, seq_len, runtime, kernels).total,
        generation_bytes=decoder.generation_memory(shape, CONTEXT, runtime),
        tokens_s=None if step_s is None else seq_len / step_s,
        decode_s=where.seconds(decoder.decode_work(shape, CONTEXT), _PEAKS),
        experts=shape.parameters != shape.active,
        notes=(*shape.notes, *_beyond(shape, seq_len)),
    )


def _beyond(shape: decoder.DecoderShape, seq_len: int) -> list[str]:
    """Return what to say where figures are of longer sequences than the model has positions for."""
    if shape.positions is None or shape.positions >= max(seq_len, CONTEXT, *STATE_TOKENS):
        return []
    said = f"has {shape.positions:,} learned positions and can read no longer sequence, whose figures are arithmetic"
    return [f"{said}; training.seq_len={shape.positions} is its longest" if seq_len > shape.positions else said]


def own_row(config: RunConfig, seq_len: int, where: Where) -> Row:
    """Return the row of one of our runs, which has `training.seq_len` = `seq_len`, as if one device trained it."""
    model, runtime = config.model, where.device.runtime_bytes
    changes = {"micro_batch_size": 1, "global_batch_size": 1, "recompute": "none", "dtype": DTYPE, "optimizer": "adamw"}
    one = config.model_copy(
        update={
            "training": config.training.model_copy(update=changes),
            "parallel": ParallelConfig(dp=1),
            "kernels": KernelsConfig(fused=where.device.fuses()),
        }
    )
    layout = Layout.of(one, devices=1, oversubscribe=True)
    step_s = known(lambda: where.training_s(micro_batch_work(one, layout, 0), has_experts(model)))
    counted = known(lambda: count_parameters(model))
    generation = known(lambda: generation_bytes(model, CONTEXT, 0, 1, DTYPE))
    return Row(
        name=config.name,
        parameters=counted.total if counted else None,
        active=counted.active if counted else None,
        flops=known(lambda: flops_per_token(model, seq_len).training),
        added_bytes=known(lambda: kv_cache_bytes_per_token(model, DTYPE)),
        states=tuple(known(partial(cache_bytes, model, tokens, DTYPE)) for tokens in STATE_TOKENS),
        training_bytes=known(lambda: memory_by_stage(one, layout, runtime)[0].total),
        generation_bytes=None if generation is None else generation + runtime,
        tokens_s=None if step_s is None else seq_len / step_s,
        decode_s=known(lambda: where.seconds(decode_work(model, CONTEXT, 1, DTYPE), _PEAKS)),
        experts=has_experts(model),
    )


def _cells(row: Row, rates: DeviceRates | None) -> tuple[str, ...]:
    def whole(value: float | None) -> str:
        return ABSENT if value is None else f"{value:,.0f}"

    def scaled(value: float | None, size: float, form: str) -> str:
        return ABSENT if value is None else format(value / size, form)

    times = (whole(row.tokens_s), scaled(row.decode_s, 1e-3, ",.3g")) if rates else ()
    return (
        row.name,
        *map(whole, (row.parameters, row.active, row.flops, row.added_bytes)),
        *(scaled(size, 1e6, ",.1f") for size in row.states),
        *(scaled(size, 1e9, ",.2f") for size in (row.training_bytes, row.generation_bytes)),
        *times,
    )


def _notes(rows: Sequence[Row], seq_len: int, where: Where) -> list[str]:
    lines = [
        f"FLOPs/token: training in sequences of {seq_len:,} tokens, causal attention halved; recurrent layers by their "
        "recurrence, not by their chunked kernels.",
        "State of a sequence in bfloat16, recurrent states in float32. Training GB: weights, float32 gradients, "
        f"AdamW's states and one sequence on one rank, nothing sharded. Generation GB: weights and one sequence of "
        f"{CONTEXT:,} tokens. Both with {gigabytes(where.device.runtime_bytes)} of libraries; counted, not measured.",
    ]
    if where.rates is None:
        return [*lines, "times: n/a; --device NAME, like --device 'H100 SXM', gives them"]
    return [
        *lines,
        f"tokens/s: projected on one {where.rates.name} without optimizer and communication, whether it fits or not. "
        f"ms a token: the roofline's bound at {CONTEXT:,} tokens.",
        *(
            f"tokens/s: {each.time_range}"
            for each in dict.fromkeys(reached_by(where.rates.name, row.experts) for row in rows)
        ),
    ]
