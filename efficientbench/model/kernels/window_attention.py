"""Causal attention of grouped queries to the latest keys alone (a sliding window, arXiv 2004.05150), or with sinks.

A sink (arXiv 2508.10925) is one more score of a head, for nothing: its probabilities sum to less than 1.
S = sequence, Q = queries, B = micro-batch, D = head dimension.
"""

from __future__ import annotations

import torch

from efficientbench.architecture.gqa import gqa_keys
from efficientbench.config.schema import RunConfig
from efficientbench.model.kernels import flex, npu_fused
from efficientbench.model.kernels.nsa import range_attention
from efficientbench.model.kernels.nsa.own_kernels import WHY_SLOW
from efficientbench.model.kernels.nsa.reach import Reach
from efficientbench.model.kernels.own_kernels import OwnKernels


def window_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None,
    sinks: torch.Tensor | None = None,
    by_blocks: bool = False,
) -> torch.Tensor:
    """Attend to each query's own key and those before it, `window` keys together.

    Args:
        query: [Q, B, heads, D], the last Q of the S tokens.
        key: [S, B, groups, D]
        value: [S, B, groups, D]
        scale: factor on the scores.
        window: keys that a query sees; None: all before it.
        sinks: [heads], the scores of their sinks; None: none.
        by_blocks: do not compile a kernel for this length.

    Returns:
        [Q, B, heads · D]
    """
    queries, (batch, groups) = len(query), key.shape[1:3]
    if window is not None:
        key, value = (each[-(queries + window - 1) :] for each in (key, value))
    grouped = query.unflatten(2, (groups, -1)).permute(1, 2, 0, 3, 4).flatten(0, 1)
    # The kernels take contiguous keys and values.
    keys, values = (each.permute(1, 2, 0, 3).flatten(0, 1).contiguous() for each in (key, value))
    reach = Reach(width=window, offset=len(key) - queries)
    by_head = None if sinks is None else sinks.view(groups, -1).repeat(batch, 1)
    out, _ = range_attention.range_attention(
        grouped.contiguous(), keys, values, scale, reach, sinks=by_head, by_blocks=by_blocks
    )
    return out.view(batch, groups, *out.shape[1:]).permute(2, 0, 1, 3, 4).reshape(queries, batch, -1)


def _name(config: RunConfig, device_type: str) -> str:
    within = config.data.attention_within_documents
    return range_attention.kernel_name(device_type, bool(gqa_keys(config.model).sinks), within)


def _fallbacks(config: RunConfig, device_type: str) -> dict[str, str]:
    attention = gqa_keys(config.model)
    if device_type not in WHY_SLOW or not attention.own_kernel or _name(config, device_type) != range_attention.NAME:
        return {}
    if flex.runs(device_type):
        return {"attention": "FlexAttention would be compiled for each document's length"}
    if npu_fused.serves(device_type):
        return {"attention": "torch_npu's npu_fusion_attention takes no sinks"}
    return {"attention": WHY_SLOW[device_type]}


KERNELS = OwnKernels(lambda config, device_type: {"attention": _name(config, device_type)}, _fallbacks)
"""The kernels of layers with a window or sinks."""
