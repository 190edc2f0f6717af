"""Attention variants, one a file. A new one: its file, a line here, its configuration, its formulas in cost.py."""

from __future__ import annotations

from megatron.core.transformer.spec_utils import ModuleSpec

from efficientbench.config.schema import ModelConfig
from efficientbench.model.attention import gqa, nsa
from efficientbench.model.position.base import Position


def attention_spec(model: ModelConfig, position: Position) -> ModuleSpec:
    """The attention that the configuration names, with the positional encoding that its layers share."""
    return {"gqa": gqa.spec, "nsa": nsa.spec}[model.attention.kind](model, position)
