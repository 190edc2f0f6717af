"""Positional encodings, one a file. A new one: its file, a line here, its configuration, its formulas in cost.py."""

from __future__ import annotations

from efficientbench.config.model import (
    AbsoluteConfig,
    AlibiConfig,
    LearnableAbsoluteConfig,
    ModelConfig,
    NoPositionConfig,
    RelativeConfig,
    RopeConfig,
)
from efficientbench.model.engine_config import EngineConfig
from efficientbench.model.position.absolute import Absolute
from efficientbench.model.position.alibi import Alibi
from efficientbench.model.position.base import Position
from efficientbench.model.position.learnable_absolute import LearnableAbsolute
from efficientbench.model.position.none import NoPosition
from efficientbench.model.position.relative import Relative
from efficientbench.model.position.rope import Rope


def build_position(model: ModelConfig, config: EngineConfig, first_stage: bool) -> Position:
    """The positional encoding that the configuration names, for one pipeline stage."""
    match model.position:
        case RopeConfig(base=base):
            return Rope(base, model.rotated_dim, config.fuse)
        case AbsoluteConfig():
            return Absolute()
        case LearnableAbsoluteConfig(max_seq_len=rows):
            return LearnableAbsolute(rows, config) if first_stage else NoPosition()
        case RelativeConfig() as relative:
            return Relative(relative, config, first_stage)
        case AlibiConfig():
            return Alibi(config)
        case NoPositionConfig():
            return NoPosition()
