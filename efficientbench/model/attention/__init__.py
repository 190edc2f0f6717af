"""Attention variants, one a file. A new one needs its file, a line here, its configuration, its formulas in `costs`."""

from __future__ import annotations

from megatron.core.transformer.spec_utils import ModuleSpec

from efficientbench.config.model import ModelConfig
from efficientbench.model.attention import gqa, mla, nsa
from efficientbench.model.position import Position


def attention_spec(model: ModelConfig, position: Position) -> ModuleSpec:
    """Return the attention that the configuration names, with the positional encoding that its layers share."""
    return {"gqa": gqa.spec, "mla": mla.spec, "nsa": nsa.spec}[model.attention.kind](model, position)
