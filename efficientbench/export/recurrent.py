"""Recurrent layers in transformers' configurations: which layers they are, and what these are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from efficientbench.architecture.mamba2 import Mamba2Config
from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.recurrent import RecurrentConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

LINEAR, FULL = "linear_attention", "full_attention"
"""transformers' names of a recurrent layer, and of one that sees all tokens."""
KEYS: Mapping[str, Mapping[str, str]] = {
    "gdn": {
        "key_heads": "linear_num_key_heads",
        "value_heads": "linear_num_value_heads",
        "key_dim": "linear_key_head_dim",
        "value_dim": "linear_value_head_dim",
        "convolution": "linear_conv_kernel_dim",
    },
    "mamba2": {
        "key_heads": "mamba_n_groups",
        "value_heads": "mamba_n_heads",
        "key_dim": "mamba_d_state",
        "value_dim": "mamba_d_head",
        "convolution": "mamba_d_conv",
    },
    "kda": {
        "key_heads": "linear_num_heads",
        "key_dim": "linear_head_dim",
        "value_dim": "linear_head_dim",
        "convolution": "linear_conv_kernel_dim",
    },
}
"""transformers' names of the keys of a recurrent layer, by ours, for each kind of attention."""


def recurrent_settings(views: Sequence[ModelConfig], kind: str) -> dict[str, Any]:
    """Return transformers' keys of recurrent layers: which they are, and what; `kind`: that of their class."""
    full = [number for number, view in enumerate(views) if view.attention.kind != kind]
    settings: dict[str, Any] = {"layer_types": [FULL if number in full else LINEAR for number in range(len(views))]}
    for view in views:
        attention = view.attention
        if not isinstance(attention, RecurrentConfig):
            continue
        ours = attention.model_dump() | {"value_heads": attention.heads}
        settings |= {theirs: ours[own] for own, theirs in KEYS[kind].items()}
        if isinstance(attention, Mamba2Config):
            settings["mamba_expand"] = attention.inner_size // view.hidden_size
    if kind == "mamba2":
        del settings["layer_types"]
        settings["attn_layer_indices"] = full
    return settings


def recurrent_keys(found: PretrainedConfig, kind: str) -> dict[str, Any]:
    """Return our section `attention` of a recurrent layer from transformers' configuration."""
    keys = {own: getattr(found, theirs) for own, theirs in KEYS[kind].items()}
    if kind == "mamba2":
        # They follow from the width of all values.
        del keys["value_heads"]
        keys["inner_size"] = found.mamba_expand * found.hidden_size
    return {"kind": kind, **keys}
