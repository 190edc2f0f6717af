"""A positional encoding that adds a number to the embedding, which grows with the position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from efficientbench.architecture.variant import WITHOUT_PARAMETERS, PositionConfig, PositionVariant

if TYPE_CHECKING:
    import torch

    from efficientbench.architecture.variant import Decoder
    from efficientbench.model.position import Position


class RampConfig(PositionConfig):
    """Keys of the ramp."""

    slope: float = Field(default=0.01, description="what a position adds")


def make(model: Decoder, config: Any, first_stage: bool) -> Position:
    """Return the encoding of one pipeline stage."""
    from efficientbench.model.position import Position

    assert isinstance(model.position, RampConfig)
    slope = model.position.slope

    class Ramp(Position):
        def embed(self, embedded: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return embedded + slope * positions.to(embedded.dtype)[:, None, None]

    return Ramp()


VARIANT = PositionVariant(config=RampConfig, layer=f"{__name__}:make", place="embedding", costs=WITHOUT_PARAMETERS)
