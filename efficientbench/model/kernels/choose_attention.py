"""Choose the kernel of causal attention: the one that a run names, or the fastest of the correct ones.

S = sequence, B = micro-batch, D and E = head dimensions of queries and values.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from efficientbench.basics.errors import ConfigError, first_line
from efficientbench.config.schema import RunConfig
from efficientbench.model.kernels import TORCH_DTYPES, causal_attention, flex, kept_timings
from efficientbench.model.kernels.causal_attention import KERNELS, AttentionKernel

CHECKED_SEQUENCE = 256
"""Sequence length at which a kernel is compared with the formula, in tokens."""
DEVIATION = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Largest distance from the float32 formula, relative to its norm: a few roundings of the dtype."""
NOT_TRIED = ("math", "flex")
"""Kernels that `auto` skips. Math holds all scores, and torch's own choice falls back to it anyway. FlexAttention is
compiled twice, which takes longer than a short run, and is made for other masks."""
REPETITIONS, ROUNDS = 5, 3
"""Passes in one measurement, and measurements; the shortest one counts."""


@dataclass(frozen=True)
class AttentionShape:
    """The shape of one rank's attention in a layer."""

    seq_len: int
    batch: int
    heads: int
    groups: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype

    @classmethod
    def of(cls, config: RunConfig) -> AttentionShape | None:
        """Return the shape of a run's plain causal attention; None if scores have a bias or the layer computes them."""
        model, training, tp = config.model, config.training, config.parallel.tp
        widths = model.plain_scores
        if widths is None or model.position_variant.place == "scores":
            return None
        # With fewer key-value heads than ranks, each rank has one full head.
        heads, groups = model.heads // tp, max(model.key_value_heads // tp, 1)
        dtype = TORCH_DTYPES[training.dtype]
        return cls(training.seq_len, training.micro_batch_size, heads, groups, *widths, dtype)


@dataclass(frozen=True)
class AttentionChoice:
    """The chosen kernel, and the measurements behind the choice."""

    name: str
    kernel: AttentionKernel
    times_s: tuple[tuple[str, float], ...] = ()
    """Kernels with their seconds per forward and backward pass, the fastest first; empty if none was measured."""
    refused: tuple[tuple[str, str], ...] = ()
    """Kernels that do not work for this shape on this device, with the reasons."""
    kept: bool = False
    """Whether the times are an earlier run's."""

    @property
    def reasons(self) -> str:
        """Return the measurements as text for the record; empty if there are none."""
        measured = ", ".join(f"{name} {time_s * 1e3:.2f} ms" for name, time_s in self.times_s)
        refused = ", ".join(name for name, _ in self.refused)
        earlier = ", of an earlier run" if self.kept else ""
        parts = [f"forward and backward{earlier}: {measured}" if measured else "", f"not: {refused}" if refused else ""]
        return "; ".join(part for part in parts if part)


@functools.lru_cache(maxsize=16)
def choose(asked: str, shape: AttentionShape, device_type: str, folder: Path) -> AttentionChoice:
    """Return the kernel for a shape on this process's device; measurements are cached in `folder`.

    Args:
        asked: a name in `KERNELS`, or 'auto': on a GPU the fastest one, or the first correct one if torch is set to
            deterministic algorithms; on other devices the device's own kernel.
        shape: the attention that a rank computes.
        device_type: the type of this process's device.
        folder: the folder of the cached measurements.

    Raises:
        ConfigError: the kernel `asked` for does not work for this shape on this device.
    """
    if asked == "auto" and (device_type != "cuda" or not torch.cuda.is_available()):
        return AttentionChoice(causal_attention.name(device_type), causal_attention.causal_attention)
    device = torch.device(device_type)
    if asked != "auto":
        reason = unavailable_reason(asked, shape, device)
        if reason is not None:
            raise ConfigError(f"kernels.attention={asked} does not serve this run: {reason}; auto picks one that does")
        return AttentionChoice(asked, KERNELS[asked])
    tried = [name for name in KERNELS if name not in NOT_TRIED]
    if torch.are_deterministic_algorithms_enabled():
        return first_right(tried, shape, device)
    return fastest_kept(tried, shape, device, folder)


def first_right(names: list[str], shape: AttentionShape, device: torch.device) -> AttentionChoice:
    """Return the first of the kernels that is correct on `device`; torch's own choice if none is.

    For deterministic runs: a measurement could choose another kernel in the next run.
    """
    reasons = {name: unavailable_reason(name, shape, device) for name in names}
    refused = tuple((name, reason) for name, reason in reasons.items() if reason is not None)
    chosen = next((name for name, reason in reasons.items() if reason is None), None)
    if chosen is None:
        return AttentionChoice(causal_attention.NAME, causal_attention.causal_attention, refused=refused)
    return AttentionChoice(chosen, KERNELS[chosen], refused=refused)


def fastest_kept(names: list[str], shape: AttentionShape, device: torch.device, folder: Path) -> AttentionChoice:
    """Return `fastest`, by cached times in `folder` if it has any for these conditions.

    A kernel from the cache is compared with the formula again.
    """
    path, conditions = kept_timings.place(folder, names, str(shape), device.type)
    kept = kept_timings.read(path, conditions)
    if kept is not None and unavailable_reason(kept.times_s[0][0], shape, device) is None:
        name = kept.times_s[0][0]
        return AttentionChoice(name, KERNELS[name], kept.times_s, kept.refused, kept=True)
    choice = fastest(names, shape, device)
    if choice.times_s:
        kept_timings.write(path, kept_timings.Timings(conditions, choice.times_s, choice.refused))
    return choice


def fastest(names: list[str], shape: AttentionShape, device: torch.device) -> AttentionChoice:
    """Return the fastest of the kernels that are correct on `device`; torch's own choice if none is."""
    refused, times_s = {}, {}
    for name in names:
        reason = unavailable_reason(name, shape, device)
        if reason is None:
            try:
                times_s[name] = _time_s(KERNELS[name], shape, device)
            except Exception as error:
                reason = first_line(error)
        if reason is not None:
            refused[name] = reason
    ranked = tuple(sorted(times_s.items(), key=lambda item: item[1]))
    if not ranked:
        return AttentionChoice(causal_attention.NAME, causal_attention.causal_attention, refused=tuple(refused.items()))
    return AttentionChoice(ranked[0][0], KERNELS[ranked[0][0]], ranked, tuple(refused.items()))


def unavailable_reason(name: str, shape: AttentionShape, device: torch.device) -> str | None:
    """Return why a kernel does not work for a shape on a device; None if it works.

    It works if it runs forward and backward on at most `CHECKED_SEQUENCE` tokens, with the results of the formula.
    """
    if name == "flex" and not flex.runs(device.type):
        return "FlexAttention needs Triton and a GPU"
    if name == "te" and importlib.util.find_spec("transformer_engine") is None:
        return "Transformer Engine is not installed"
    scale = 1 / math.sqrt(shape.key_dim)
    inputs = _inputs(shape, min(shape.seq_len, CHECKED_SEQUENCE), device)
    try:
        found = _results(KERNELS[name], inputs, scale)
    except Exception as error:  # Libraries refuse shapes, and fail to load, with errors of any kind.
        return first_line(error)
    wanted = _results(KERNELS["math"], tuple(x.float() for x in inputs), scale)
    distances = [float((a.float() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]
    # One by one, because `max` of numbers and a NaN may return either.
    wrong = [each for each in distances if not each < DEVIATION[shape.dtype]]
    return f"it deviates from the formula by {wrong[0]:.1e} of its norm" if wrong else None


Inputs: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Query, key, value, and the output's gradient."""


def _inputs(shape: AttentionShape, seq_len: int, device: torch.device) -> Inputs:
    generator = torch.Generator(device).manual_seed(0)

    def draw(*sizes: int) -> torch.Tensor:
        return torch.randn(seq_len, shape.batch, *sizes, dtype=shape.dtype, device=device, generator=generator)

    return (
        draw(shape.heads, shape.key_dim),
        draw(shape.groups, shape.key_dim),
        draw(shape.groups, shape.value_dim),
        draw(shape.heads * shape.value_dim),
    )


def _results(kernel: AttentionKernel, inputs: tuple[torch.Tensor, ...], scale: float) -> tuple[torch.Tensor, ...]:
    """Return the output, and the gradients of query, key and value."""
    with torch.enable_grad():
        query, key, value = (x.detach().requires_grad_() for x in inputs[:3])
        out = kernel(query, key, value, scale)
        return (out.detach(), *torch.autograd.grad(out, (query, key, value), inputs[3]))


def _time_s(kernel: AttentionKernel, shape: AttentionShape, device: torch.device) -> float:
    """Return the seconds of one forward and backward pass, the shortest of several rounds."""
    inputs, scale = _inputs(shape, shape.seq_len, device), 1 / math.sqrt(shape.key_dim)
    _results(kernel, inputs, scale)
    return min(_rounds(kernel, inputs, scale, device))


def _rounds(kernel: AttentionKernel, inputs: Inputs, scale: float, device: torch.device) -> Iterator[float]:
    for _ in range(ROUNDS):
        _wait(device)
        begin_s = time.perf_counter()
        for _ in range(REPETITIONS):
            _results(kernel, inputs, scale)
        _wait(device)
        yield (time.perf_counter() - begin_s) / REPETITIONS


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
