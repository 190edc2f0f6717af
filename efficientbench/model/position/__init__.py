"""Positional encodings, one a file. A new one: its file, a line here, its configuration, its formulas in cost.py."""

from __future__ import annotations

from efficientbench.config.schema import ModelConfig, NoPositionConfig, RopeConfig
from efficientbench.model.position.base import Position
from efficientbench.model.position.none import NoPosition
from efficientbench.model.position.rope import Rope


def build_position(model: ModelConfig) -> Position:
    """The positional encoding that the configuration names."""
    match model.position:
        case RopeConfig(base=base):
            return Rope(base, model.rotated_dim)
        case NoPositionConfig():
            return NoPosition()
