"""Positional encodings that declare the least: no formulas, and no kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efficientbench.architecture.variant import PositionConfig, PositionVariant

if TYPE_CHECKING:
    import torch

    from efficientbench.architecture.variant import Decoder
    from efficientbench.model.position import Position

RATE = 1 / 64


class StretchConfig(PositionConfig):
    """No keys."""


class SlopeConfig(PositionConfig):
    """No keys."""


def stretch(model: Decoder, config: Any, first_stage: bool) -> Position:
    """Return an encoding that makes queries and keys longer with their position."""
    import torch

    from efficientbench.model.position import Position

    class Stretch(Position):
        def rotate(self, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
            positions = stride * torch.arange(x.shape[0], device=x.device, dtype=x.dtype)
            return x * (1 + RATE * positions)[:, None, None, None]

    return Stretch()


def slope(model: Decoder, config: Any, first_stage: bool) -> Position:
    """Return an encoding that lowers the scores of all heads by the distance."""
    import torch

    from efficientbench.model.position import Position

    class Slope(Position):
        def bias(self, sequence: int) -> torch.Tensor:
            return -RATE * torch.arange(sequence, dtype=torch.float32).expand(config.num_attention_heads, -1)

    return Slope()


STRETCH = PositionVariant(config=StretchConfig, layer=f"{__name__}:stretch", place="queries and keys")
SLOPE = PositionVariant(config=SlopeConfig, layer=f"{__name__}:slope", place="scores")
