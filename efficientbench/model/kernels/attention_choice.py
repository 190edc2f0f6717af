"""Which kernel computes causal attention without a bias: the one asked for, or the fastest of those that are right.

S = sequence, B = micro-batch, D and E = head dimensions of queries and values.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from efficientbench.config.errors import ConfigError
from efficientbench.model.kernels import attention, flex
from efficientbench.model.kernels.attention import causal_attention

AttentionKernel: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""(query [S, B, heads, D], key [S, B, groups, D], value [S, B, groups, E], scale) → [S, B, heads · E], causal."""

DEFAULT: AttentionKernel = causal_attention

CHECKED_SEQUENCE = 256
"""Length at which a kernel is compared with the formula."""
DEVIATION = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Largest distance from the float32 formula, relative to its norm: a few roundings of the dtype."""
REPETITIONS, ROUNDS = 5, 3


@dataclass(frozen=True)
class AttentionShape:
    """What one rank computes in a layer."""

    seq_len: int
    batch: int
    heads: int
    groups: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype


@dataclass(frozen=True)
class AttentionChoice:
    """The kernel in use and what the choice rests on."""

    name: str
    kernel: AttentionKernel
    times_s: tuple[tuple[str, float], ...] = ()
    """Kernel and its time forward and backward, the fastest first; empty where none was measured."""
    refused: tuple[tuple[str, str], ...] = ()
    """Kernel and why it does not serve this shape here."""

    def describe(self) -> str:
        """For the record."""
        measured = ", ".join(f"{name} {time_s * 1e3:.2f} ms" for name, time_s in self.times_s)
        refused = ", ".join(name for name, _ in self.refused)
        parts = [
            self.name,
            f"forward and backward: {measured}" if measured else "",
            f"not: {refused}" if refused else "",
        ]
        return "; ".join(part for part in parts if part)


def sdpa(backend: SDPBackend) -> AttentionKernel:
    """One backend of torch's scaled_dot_product_attention."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        value_dim = value.shape[-1]
        if backend is SDPBackend.FLASH_ATTENTION and value_dim < query.shape[-1]:
            # Flash wants values as wide as keys.
            value = F.pad(value, (0, query.shape[-1] - value_dim))
        if backend is SDPBackend.EFFICIENT_ATTENTION and key.shape[2] != query.shape[2]:
            # It knows no grouped heads.
            key, value = (x.repeat_interleave(query.shape[2] // x.shape[2], dim=2) for x in (key, value))
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(
                query.permute(1, 2, 0, 3),
                key.permute(1, 2, 0, 3),
                value.permute(1, 2, 0, 3),
                is_causal=True,
                scale=scale,
                enable_gqa=query.shape[2] != key.shape[2],
            )
        return out[..., :value_dim].permute(2, 0, 1, 3).flatten(2)

    return attend


def transformer_engine(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Transformer Engine's attention, which picks among kernels of its own."""
    attend = _transformer_engine(query.shape[2], key.shape[2], query.shape[-1], value.shape[-1], scale)
    return attend(query, key, value)


@functools.lru_cache(maxsize=4)
def _transformer_engine(
    heads: int, groups: int, key_dim: int, value_dim: int, scale: float
) -> Callable[..., torch.Tensor]:
    engine = importlib.import_module("transformer_engine.pytorch")
    module: Callable[..., torch.Tensor] = engine.DotProductAttention(
        heads,
        (key_dim, value_dim),
        num_gqa_groups=groups,
        attention_dropout=0.0,
        qkv_format="sbhd",
        attn_mask_type="causal",
        softmax_scale=scale,
    )
    return module


KERNELS: dict[str, AttentionKernel] = {
    "flash": sdpa(SDPBackend.FLASH_ATTENTION),
    "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
    "efficient": sdpa(SDPBackend.EFFICIENT_ATTENTION),
    "flex": flex.causal_attention,
    "te": transformer_engine,
    "math": sdpa(SDPBackend.MATH),
}


@functools.lru_cache(maxsize=16)
def choose(asked: str, shape: AttentionShape, device_type: str) -> AttentionChoice:
    """The kernel for a shape on this process's device; measured once in a process.

    Args:
        asked: a name of `KERNELS`, or 'auto': by measurement where the device has several that are worth it, else the
            device's own.

    Raises:
        ConfigError: the kernel asked for does not serve this shape here.
    """
    if asked == "auto" and (device_type != "cuda" or not torch.cuda.is_available()):
        return AttentionChoice(attention.name(device_type), DEFAULT)
    device = torch.device(device_type)
    if asked != "auto":
        reason = unavailable_reason(asked, shape, device)
        if reason is not None:
            raise ConfigError(f"kernels.attention={asked} does not serve this run: {reason}; auto picks one that does")
        return AttentionChoice(asked, KERNELS[asked])
    # Not math, which holds all scores: it serves where nothing else does, by torch's own choice.
    return fastest([name for name in KERNELS if name != "math"], shape, device)


def fastest(names: list[str], shape: AttentionShape, device: torch.device) -> AttentionChoice:
    """The fastest of the kernels that are right on `device`; torch's own choice where none is."""
    refused, times_s = {}, {}
    for name in names:
        reason = unavailable_reason(name, shape, device)
        if reason is None:
            try:
                times_s[name] = _time_s(KERNELS[name], shape, device)
            except Exception as error:
                reason = _first_line(error)
        if reason is not None:
            refused[name] = reason
    ranked = tuple(sorted(times_s.items(), key=lambda item: item[1]))
    if not ranked:
        return AttentionChoice("torch scaled_dot_product_attention", DEFAULT, refused=tuple(refused.items()))
    return AttentionChoice(ranked[0][0], KERNELS[ranked[0][0]], ranked, tuple(refused.items()))


def unavailable_reason(name: str, shape: AttentionShape, device: torch.device) -> str | None:
    """Why a kernel does not serve a shape on a device, or None: it runs on a shorter sequence, forward and backward,
    and comes to what the formula gives."""
    if name == "flex" and not flex.runs(device.type):
        return "FlexAttention needs Triton and a GPU"
    if name == "te" and importlib.util.find_spec("transformer_engine") is None:
        return "Transformer Engine is not installed"
    scale = 1 / math.sqrt(shape.key_dim)
    inputs = _inputs(shape, min(shape.seq_len, CHECKED_SEQUENCE), device)
    try:
        found = _results(KERNELS[name], inputs, scale)
    except Exception as error:  # Libraries refuse shapes, and fail to load, with errors of any kind.
        return _first_line(error)
    wanted = _results(KERNELS["math"], tuple(x.float() for x in inputs), scale)
    distances = [float((a.float() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]
    # One by one: of numbers and NaN, max gives either.
    wrong = [each for each in distances if not each < DEVIATION[shape.dtype]]
    return f"it deviates from the formula by {wrong[0]:.1e} of its norm" if wrong else None


Inputs: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Query, key, value, and the gradient of the output."""


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
    """The output, and the gradients of query, key and value."""
    with torch.enable_grad():
        query, key, value = (x.detach().requires_grad_() for x in inputs[:3])
        out = kernel(query, key, value, scale)
        return (out.detach(), *torch.autograd.grad(out, (query, key, value), inputs[3]))


def _time_s(kernel: AttentionKernel, shape: AttentionShape, device: torch.device) -> float:
    """Of one pass forward and backward: the least of several rounds."""
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


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
