"""Causal attention to the latest keys alone (arXiv 2004.05150, a sliding window), for layers of grouped queries.

S = sequence, B = micro-batch, D = head dimension.
"""

from __future__ import annotations

import torch

from efficientbench.architecture.gqa import GQAConfig
from efficientbench.config.schema import RunConfig
from efficientbench.model.kernels.nsa import range_attention
from efficientbench.model.kernels.nsa.own_kernels import WHY_SLOW
from efficientbench.model.kernels.nsa.reach import Reach
from efficientbench.model.kernels.own_kernels import OwnKernels


def window_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int
) -> torch.Tensor:
    """Attend to each query's own key and those before it, `window` keys together.

    Args:
        query: [S, B, heads, D]
        key: [S, B, groups, D]
        value: [S, B, groups, D]
        scale: factor on the scores.
        window: keys that a query sees.

    Returns:
        [S, B, heads · D]
    """
    sequence, batch, groups, dim = key.shape
    grouped = query.view(sequence, batch, groups, -1, dim).permute(1, 2, 0, 3, 4).flatten(0, 1)
    # The kernels take contiguous keys and values.
    keys, values = (each.permute(1, 2, 0, 3).flatten(0, 1).contiguous() for each in (key, value))
    out, _ = range_attention.range_attention(grouped.contiguous(), keys, values, scale, Reach(width=window))
    return out.view(batch, groups, *out.shape[1:]).permute(2, 0, 1, 3, 4).reshape(sequence, batch, -1)


def _fallbacks(config: RunConfig, device_type: str) -> dict[str, str]:
    assert isinstance(config.model.attention, GQAConfig)
    slow = range_attention.kernel_name(device_type) == range_attention.NAME and device_type in WHY_SLOW
    return {"attention": WHY_SLOW[device_type]} if slow and config.model.attention.window else {}


KERNELS = OwnKernels(lambda config, device_type: {"attention": range_attention.kernel_name(device_type)}, _fallbacks)
"""The kernels of layers with a window."""
