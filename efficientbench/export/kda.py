"""Kimi Delta Attention in transformers: the recurrent layers of Kimi Linear."""

from __future__ import annotations

import torch

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.recurrent import recurrent
from efficientbench.export.architectures import Exporter
from efficientbench.export.families import KDA, Architecture
from efficientbench.export.gdn import OUR_CONVOLUTION, OUR_INPUT

NAMES = {
    "self_attention.dt_bias": "self_attn.dt_bias",
    "self_attention.linear_decay.weight": "self_attn.f_b_proj.weight",
    "self_attention.linear_gate.weight": "self_attn.g_b_proj.weight",
    "self_attention.out_norm": "self_attn.o_norm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
}
"""Tensors that are only renamed: ours → transformers', as in files; in memory some have other names."""
OUR_LOW, OUR_DECAYS = "self_attention.linear_low.weight", "self_attention.A_log"


def _parts(view: ModelConfig) -> dict[str, str]:
    parts, kda = {KDA: "attention.kind=kda"}, recurrent(view)
    if kda.value_dim != kda.key_dim:
        parts[f"{KDA} with values not as wide as keys"] = f"attention.value_dim={kda.value_dim}"
    return parts


def _weights(view: ModelConfig) -> dict[str, tuple[int, ...]]:
    kda, hidden = recurrent(view), view.hidden_size
    return {
        OUR_INPUT: (kda.convolved + kda.heads, hidden),
        OUR_LOW: (2 * kda.key_dim, hidden),
        "self_attention.linear_decay.weight": (kda.heads * kda.key_dim, kda.key_dim),
        "self_attention.linear_gate.weight": (kda.outputs, kda.key_dim),
        OUR_CONVOLUTION: (kda.convolved, kda.convolution),
        OUR_DECAYS: (kda.heads,),
        "self_attention.dt_bias": (kda.heads * kda.key_dim,),
        "self_attention.linear_proj.weight": (hidden, kda.outputs),
    }


def _converted(
    part: str, weight: torch.Tensor, view: ModelConfig, architecture: Architecture
) -> dict[str, torch.Tensor]:
    """Rename a weight, or collect what lies together for each head: all queries, all keys, and so on."""
    if part in NAMES:
        return {NAMES[part]: weight}
    if part == OUR_DECAYS:
        return {"self_attn.A_log": weight.view(1, 1, -1, 1)}
    if part == OUR_LOW:
        decays, gates = weight.chunk(2)
        return {"self_attn.f_a_proj.weight": decays, "self_attn.g_a_proj.weight": gates}
    if part not in (OUR_INPUT, OUR_CONVOLUTION):
        return {}
    kda = recurrent(view)
    widths = [kda.key_dim, kda.key_dim, kda.value_dim]
    by_head = weight.unflatten(0, (kda.heads, -1))
    if part == OUR_CONVOLUTION:
        parts = zip("qkv", by_head.split(widths, dim=1), strict=True)
        return {f"self_attn.{letter}_conv1d.weight": each.flatten(0, 1)[:, None] for letter, each in parts}
    parts = zip("qkvb", by_head.split([*widths, 1], dim=1), strict=True)
    return {f"self_attn.{letter}_proj.weight": each.flatten(0, 1) for letter, each in parts}


EXPORTER = Exporter(
    parts=_parts,
    norms=lambda view: {"self_attention.out_norm": recurrent(view).value_dim},
    weights=_weights,
    converted=_converted,
)
