"""The recurrences by fla-core's Triton kernels, on NVIDIA GPUs.

Their forward and backward passes were compared with the equations in Triton's interpreter, KDA's on an H200 too.
Letters are those of `recurrence.py`.
"""

from __future__ import annotations

import functools
import importlib
from typing import NamedTuple

import torch
from packaging.version import Version

LEAST_VERSION = Version("0.6")
"""The oldest fla-core that was compared with the equations."""
LEAST_KEY, LARGEST_KEY = 16, 256
LEAST_DECAY = -88.0
"""The logarithm of less than float32's least normal number. The kernels subtract sums of decays: there −∞, with which a
document begins, would make no number."""


class Rule(NamedTuple):
    """What tokens learn, and fla-core's function for it."""

    package: str
    function: str
    gradient_wants_new_triton: bool
    """Whether its gradient is wrong on Hopper by Triton 3.4 to 3.7.0; fla-core then raises."""

    @property
    def name(self) -> str:
        """The kernel's name in records."""
        return f"fla-core {self.function} (Triton)"


DELTA = Rule("fla.ops.gated_delta_rule", "chunk_gated_delta_rule", gradient_wants_new_triton=True)
BY_CHANNEL = Rule("fla.ops.kda", "chunk_kda", gradient_wants_new_triton=False)
VALUES = Rule("fla.ops.simple_gla", "chunk_simple_gla", gradient_wants_new_triton=True)


@functools.cache
def _lacking(rule: Rule) -> str | None:
    """Return what the installation lacks to compute a rule."""
    try:
        version = Version(importlib.import_module("fla").__version__)
        getattr(importlib.import_module(rule.package), rule.function)
        device = importlib.import_module("fla.utils")
        faulty = device.IS_NVIDIA_HOPPER and device.TRITON_ABOVE_3_4_0 and not device.TRITON_ABOVE_3_7_1
    except Exception:  # a broken installation of Triton fails in ways of its own
        return f"fla-core {LEAST_VERSION} or newer is not installed, or does not start"
    if version < LEAST_VERSION:
        return f"fla-core {version} is older than {LEAST_VERSION}"
    if faulty and rule.gradient_wants_new_triton:
        return "fla-core's gradient on Hopper needs Triton 3.7.1"
    return None


def refusal(rule: Rule, device_type: str, dtype: torch.dtype, key_dim: int, value_dim: int) -> str | None:
    """Return why fla-core does not compute a rule on this device type; None: it does.

    Args:
        rule: what tokens learn.
        device_type: torch's name of the device type, like cuda.
        dtype: the model's, to which the kernels round their inputs, states and products.
        key_dim: width of a key.
        value_dim: width of a value.
    """
    if device_type != "cuda":
        return "fla-core's kernels serve NVIDIA GPUs"
    if dtype != torch.bfloat16:
        return "fla-core's kernels round what fp32 and fp16 compute in float32: they serve bf16"
    if not LEAST_KEY <= key_dim <= LARGEST_KEY or key_dim % 2 or value_dim % 2:
        return f"fla-core's kernels take even widths, and keys of {LEAST_KEY} to {LARGEST_KEY}"
    return _lacking(rule)


def rule_for(query: torch.Tensor, value: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor | None) -> Rule | None:
    """Return the rule of a recurrence that fla-core computes; None: it does not; shapes as of `recurrence`."""
    by_channel = decay.dim() == query.dim()
    rule = {(True, False): DELTA, (True, True): BY_CHANNEL, (False, False): VALUES}.get((beta is not None, by_channel))
    if rule is None or refusal(rule, query.device.type, _dtype(query, value), query.shape[-1], value.shape[-1]):
        return None
    return rule


def _dtype(query: torch.Tensor, value: torch.Tensor) -> torch.dtype:
    """Return the model's dtype: one of the two may be wider, where a norm or a step was applied in float32."""
    return min(query.dtype, value.dtype, key=lambda dtype: dtype.itemsize)


def recurrence(
    rule: Rule,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a sequence by a rule; shapes and results as of `recurrence` in torch."""
    dtype, repeats = _dtype(query, value), value.shape[2] // key.shape[2]
    if rule is VALUES and repeats > 1:
        # This kernel alone has one query and key for each value.
        query, key = (each.to(dtype).repeat_interleave(repeats, dim=2) for each in (query, key))
    by_row = {name: each.to(dtype).transpose(0, 1) for name, each in (("q", query), ("k", key), ("v", value))}
    by_row["g"] = decay.float().clamp(min=LEAST_DECAY).transpose(0, 1)
    if beta is not None:
        by_row["beta"] = beta.float().transpose(0, 1)
    compute = getattr(importlib.import_module(rule.package), rule.function)
    before = None if state is None else state.float()
    out, last = compute(**by_row, scale=1.0, initial_state=before, output_final_state=True)
    return out.transpose(0, 1).to(value.dtype), last
