"""Mamba-2 in transformers: the recurrent layers of Bamba."""

from __future__ import annotations

import torch

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.recurrent import recurrent
from efficientbench.export.architectures import Exporter
from efficientbench.export.families import MAMBA, Architecture
from efficientbench.export.gdn import OUR_CONVOLUTION, OUR_INPUT, joined

NAMES = {
    "self_attention.A_log": "mamba.A_log",
    "self_attention.D": "mamba.D",
    "self_attention.dt_bias": "mamba.dt_bias",
    "self_attention.out_norm": "mamba.norm.weight",
    "self_attention.linear_proj.weight": "mamba.out_proj.weight",
}
"""Tensors that are only renamed: ours → transformers'."""
OUR_BIAS = "self_attention.conv_bias"


def _parts(view: ModelConfig) -> dict[str, str]:
    parts, inner_size = {MAMBA: "attention.kind=mamba2"}, recurrent(view).outputs
    # Bamba's key for it is the factor.
    if inner_size % view.hidden_size:
        parts["Mamba-2 with values as wide as no multiple of the hidden size"] = f"attention.inner_size={inner_size}"
    return parts


def _weights(view: ModelConfig) -> dict[str, tuple[int, ...]]:
    mamba = recurrent(view)
    return {
        OUR_INPUT: (mamba.convolved + mamba.outputs + mamba.heads, view.hidden_size),
        OUR_CONVOLUTION: (mamba.convolved, mamba.convolution),
        OUR_BIAS: (mamba.convolved,),
        "self_attention.A_log": (mamba.heads,),
        "self_attention.D": (mamba.heads,),
        "self_attention.dt_bias": (mamba.heads,),
        "self_attention.linear_proj.weight": (view.hidden_size, mamba.outputs),
    }


def _converted(
    part: str, weight: torch.Tensor, view: ModelConfig, architecture: Architecture
) -> dict[str, torch.Tensor]:
    """Rename a weight, or collect what lies together for each key head: gates z, values x, keys B, queries C, steps."""
    if part in NAMES:
        return {NAMES[part]: weight}
    if part not in (OUR_INPUT, OUR_CONVOLUTION, OUR_BIAS):
        return {}
    mamba = recurrent(view)
    repeats = mamba.heads // mamba.key_heads
    mixed = [mamba.key_dim, mamba.key_dim, repeats * mamba.value_dim]
    by_head = weight.unflatten(0, (mamba.key_heads, -1))
    if part == OUR_INPUT:
        query, key, value, gate, step = by_head.split([*mixed, repeats * mamba.value_dim, repeats], dim=1)
        return {"mamba.in_proj.weight": joined((gate, value, key, query, step))}
    query, key, value = by_head.split(mixed, dim=1)
    convolved = joined((value, key, query))
    return {"mamba.conv1d.bias": convolved} if part == OUR_BIAS else {"mamba.conv1d.weight": convolved[:, None]}


EXPORTER = Exporter(
    parts=_parts,
    norms=lambda view: {"self_attention.out_norm": recurrent(view).outputs},
    weights=_weights,
    converted=_converted,
)
