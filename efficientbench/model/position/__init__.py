"""Positional encodings, one a file. A new one: its file, a line here, its configuration, its formulas in cost.py."""

from __future__ import annotations

from efficientbench.config.schema import ModelConfig
from efficientbench.model.position.rope import Rope


def build_position(model: ModelConfig) -> Rope:
    """The positional encoding that the configuration names."""
    return {"rope": Rope}[model.position.kind](model)
