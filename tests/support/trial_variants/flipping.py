"""The sliding window on a rank that flips a bit once, as failing hardware would, or with an operator of its own."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from . import window

if TYPE_CHECKING:
    import torch

    from efficientbench.architecture.variant import Decoder
    from efficientbench.model.position import Position


class FlippingConfig(window.WindowConfig):
    """Keys of the fault."""

    rank: int = Field(default=0, description="the rank that flips a bit")
    call: int = Field(default=0, description="of attention, from 1, at which it does; 0: never")
    also: Literal["nothing", "unpooling"] = Field(default="nothing", description="another operator to call")


def layer(model: Decoder, position: Position) -> Any:
    """Return the ModuleSpec of GQA's layer with the faulty attention."""
    from efficientbench.model.attention.gqa import spec

    assert isinstance(model.attention, FlippingConfig)
    return spec(model, position, functools.partial(attend, config=model.attention, calls=itertools.count(1)))


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    config: FlippingConfig,
    calls: itertools.count[int],
) -> torch.Tensor:
    """Compute `window.attend`, [S, B, heads · D], perhaps with another bit."""
    import torch

    if config.also == "unpooling":
        torch.nn.functional.max_unpool2d(torch.ones(1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.int64), 2)
    out = window.attend(query, key, value, scale, config.window)
    if next(calls) == config.call and int(os.environ["RANK"]) == config.rank:
        bits = torch.zeros_like(out, dtype=torch.int32)
        bits.view(-1)[5] = 1 << 20
        # Its gradient is that of the sound numbers.
        out = out + ((out.detach().view(torch.int32) ^ bits).view(out.dtype) - out.detach())
    return out


VARIANT = dataclasses.replace(
    window.VARIANT, config=FlippingConfig, layer=f"{__name__}:layer", tensor_parallel=lambda model, ranks: []
)
