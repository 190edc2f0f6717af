"""Gated DeltaNet in transformers: the recurrent layers of Qwen3.5."""

from __future__ import annotations

import torch

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.recurrent import recurrent
from efficientbench.export.architectures import Exporter
from efficientbench.export.families import DELTA, Architecture

NAMES = {
    "self_attention.A_log": "linear_attn.A_log",
    "self_attention.dt_bias": "linear_attn.dt_bias",
    "self_attention.out_norm": "linear_attn.norm.weight",
    "self_attention.linear_proj.weight": "linear_attn.out_proj.weight",
}
"""Tensors that are only renamed: ours → transformers'."""
OUR_INPUT, OUR_CONVOLUTION = "self_attention.linear_in.weight", "self_attention.conv_weight"


def _weights(view: ModelConfig) -> dict[str, tuple[int, ...]]:
    gdn = recurrent(view)
    values = gdn.heads * gdn.value_dim
    return {
        OUR_INPUT: (gdn.convolved + values + 2 * gdn.heads, view.hidden_size),
        OUR_CONVOLUTION: (gdn.convolved, gdn.convolution),
        "self_attention.A_log": (gdn.heads,),
        "self_attention.dt_bias": (gdn.heads,),
        "self_attention.linear_proj.weight": (view.hidden_size, values),
    }


def _converted(
    part: str, weight: torch.Tensor, view: ModelConfig, architecture: Architecture
) -> dict[str, torch.Tensor]:
    """Rename a weight, or collect what lies together for each key head: all queries, then all keys, and so on."""
    if part in NAMES:
        return {NAMES[part]: weight}
    if part not in (OUR_INPUT, OUR_CONVOLUTION):
        return {}
    gdn = recurrent(view)
    repeats = gdn.heads // gdn.key_heads
    mixed = [gdn.key_dim, gdn.key_dim, repeats * gdn.value_dim]
    by_head = weight.unflatten(0, (gdn.key_heads, -1))
    if part == OUR_CONVOLUTION:
        return {"linear_attn.conv1d.weight": joined(by_head.split(mixed, dim=1))[:, None]}
    query, key, value, gate, beta, decay = by_head.split([*mixed, repeats * gdn.value_dim, repeats, repeats], dim=1)
    collected = {"qkv": (query, key, value), "z": (gate,), "b": (beta,), "a": (decay,)}
    return {f"linear_attn.in_proj_{name}.weight": joined(parts) for name, parts in collected.items()}


def joined(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Join parts [heads, rows, …] of all heads: the rows of the first, then those of the second, and so on."""
    return torch.cat([each.flatten(0, 1) for each in parts])


EXPORTER = Exporter(
    parts=lambda view: {DELTA: "attention.kind=gdn"},
    norms=lambda view: {"self_attention.out_norm": recurrent(view).value_dim},
    weights=_weights,
    converted=_converted,
)
