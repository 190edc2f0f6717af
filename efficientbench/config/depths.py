"""The sizes dN of a chat model at depths that chat.yaml does not name, by its rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HEAD_DIM, WIDTH_PER_LAYER = 128, 64
"""Head dimension, and hidden size per layer, at every depth: see chat.yaml."""
RATE_BY_WIDTH = 0.46
"""Learning rate times hidden size, as d12, d16 and d20 have it."""
SMOKE_LAYERS, SMOKE_WIDTH = 4, 8
"""Layers of a smoke run's models, and by what their widths are divided."""


def depth_of(size: str) -> int | None:
    """Return N of a size dN; None for any other name."""
    found = re.fullmatch(r"d([1-9]\d{0,2})", size)
    return int(found[1]) if found else None


def shapes(depth: int) -> dict[str, int]:
    """Return layers and widths of a depth."""
    hidden = WIDTH_PER_LAYER * depth
    return {
        "layers": depth,
        "hidden_size": hidden,
        "heads": -(-hidden // HEAD_DIM),
        "head_dim": HEAD_DIM,
        "ffn_hidden_size": -(-hidden * 8 // (3 * 128)) * 128,
    }


def size_of_depth(sizes: Mapping[str, Mapping[str, Any]], depth: int) -> dict[str, Any]:
    """Return the size of a depth that is not among `sizes`: 20 tokens for each parameter, the batch of the next less.

    Its vocabulary is that of the sizes, and its attention has as many groups as heads.
    """
    depths = [number for name in sizes if (number := depth_of(name)) is not None]
    near = sizes[f"d{max((each for each in depths if each <= depth), default=min(depths))}"]
    rate = RATE_BY_WIDTH / (WIDTH_PER_LAYER * depth)
    training = {**near["training"], "tokens": "20x", "learning_rate": _rounded(rate)}
    training["min_learning_rate"] = _rounded(rate / 10)
    training.pop("steps", None)
    own = shapes(depth)
    attention = {**near["model"]["attention"], "query_groups": own["heads"]}
    return {**near, "model": {**near["model"], **own, "attention": attention}, "training": training}


def smoke_size(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a size's smaller shape: fewer layers and narrower ones, with the size's heads and vocabulary."""
    widths = {key: layer["model"][key] // SMOKE_WIDTH for key in ("hidden_size", "head_dim", "ffn_hidden_size")}
    kept = {key: layer["model"][key] for key in ("heads", "vocab_size")}
    return {"model": {"layers": SMOKE_LAYERS, **widths, **kept}, "data": layer["data"]}


def _rounded(rate: float) -> float:
    return float(f"{rate:.2g}")
