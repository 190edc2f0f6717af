"""Causal softmax attention without a bias: the kernel of each device, and the kernels that a run can name.

S = sequence, Q = queries, B = micro-batch, D and E = head dimensions of queries and values.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from efficientbench.model.kernels import flex, npu_fused

AttentionKernel: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""(query [S, B, heads, D], key [S, B, groups, D], value [S, B, groups, E], scale) → [S, B, heads · E], causal."""

NAME = "torch scaled_dot_product_attention"


def _flash_takes_groups() -> bool:
    query, key = (torch.zeros(1, heads, 8, 16, device="cpu") for heads in (2, 1))
    chosen: int = torch._fused_sdp_choice(query, key, key, is_causal=True, enable_gqa=True)
    return chosen == SDPBackend.FLASH_ATTENTION.value


CPU_FLASH_TAKES_GROUPS = _flash_takes_groups()
"""Whether the CPU's flash kernel takes grouped heads; torch 2.6's does not."""


def name(device_type: str) -> str:
    """Return the name of a device type's kernel."""
    return npu_fused.ATTENTION if npu_fused.serves(device_type) else NAME


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Return softmax(scale · q kᵀ + causal mask) v; query head h reads key/value group h // (heads / groups).

    The queries belong to the last Q of the S tokens.

    Args:
        query: [Q, B, heads, D]
        key: [S, B, groups, D]
        value: [S, B, groups, E], E ≤ D
        scale: factor on the scores.

    Returns:
        [Q, B, heads · E]
    """
    if npu_fused.serves(query.device.type):
        return npu_fused.causal_attention(query, key, value, scale)
    value_dim = value.shape[-1]
    if value_dim != query.shape[-1] and query.device.type == "cpu":
        # The CPU's flash kernel takes only values as wide as keys; other kernels would hold all S × S scores in memory.
        value = F.pad(value, (0, query.shape[-1] - value_dim))
    if query.device.type == "cpu" and not CPU_FLASH_TAKES_GROUPS:
        key, value = _for_each_head(key, value, query)
    mask = None if query.shape[0] == key.shape[0] else causal_lower_right(query.shape[0], key.shape[0])
    out = F.scaled_dot_product_attention(
        query.permute(1, 2, 0, 3),
        key.permute(1, 2, 0, 3),
        value.permute(1, 2, 0, 3),
        # Not a Boolean mask, with which the flash kernel computes the hidden half too (1.45 times as long).
        is_causal=mask is None,
        attn_mask=mask,
        scale=scale,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    return out[..., :value_dim].permute(2, 0, 1, 3).flatten(2)


def _for_each_head(key: torch.Tensor, value: torch.Tensor, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Repeat keys and values [S, B, groups, ·] for each head of their group → [S, B, heads, ·]."""
    if key.shape[2] == query.shape[2]:
        return key, value
    copies = query.shape[2] // key.shape[2]
    return key.repeat_interleave(copies, dim=2), value.repeat_interleave(copies, dim=2)


def sdpa(backend: SDPBackend) -> AttentionKernel:
    """Return one backend of torch's scaled_dot_product_attention as a kernel."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        if backend is SDPBackend.CUDNN_ATTENTION and len(key) == 1:
            # It takes no single key, which a document or a prompt of one token has.
            return causal_attention(query, key, value, scale)
        value_dim = value.shape[-1]
        if backend is SDPBackend.FLASH_ATTENTION and value_dim < query.shape[-1]:
            # Flash takes only values as wide as keys.
            value = F.pad(value, (0, query.shape[-1] - value_dim))
        on_cpu = backend is SDPBackend.FLASH_ATTENTION and query.device.type == "cpu"
        if backend is SDPBackend.EFFICIENT_ATTENTION or (on_cpu and not CPU_FLASH_TAKES_GROUPS):
            # This backend does not take grouped heads.
            key, value = _for_each_head(key, value, query)
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
    """Compute `causal_attention` by Transformer Engine, which chooses among its own kernels."""
    attend = _transformer_engine(query.shape[2], key.shape[2], query.shape[-1], value.shape[-1], scale)
    return attend(query, key, value)


@functools.lru_cache(maxsize=4)
def _transformer_engine(
    heads: int, groups: int, key_dim: int, value_dim: int, scale: float
) -> Callable[..., torch.Tensor]:
    engine = importlib.import_module("transformer_engine.pytorch")
    return engine.DotProductAttention(
        heads,
        (key_dim, value_dim),
        num_gqa_groups=groups,
        attention_dropout=0.0,
        qkv_format="sbhd",
        attn_mask_type="causal",
        softmax_scale=scale,
    )


KERNELS: dict[str, AttentionKernel] = {
    "flash": sdpa(SDPBackend.FLASH_ATTENTION),
    "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
    "efficient": sdpa(SDPBackend.EFFICIENT_ATTENTION),
    "flex": flex.causal_attention,
    "te": transformer_engine,
    "math": sdpa(SDPBackend.MATH),
}
"""Kernels by the names that a configuration's `kernels.attention` takes."""
