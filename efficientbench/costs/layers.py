"""Sums over the layers of a model, and over those of one pipeline stage, without torch.

Layers of one kind cost the same, and so do stages, which have equally many layers of each kind (config/layout.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from efficientbench.architecture.model import ModelConfig
from efficientbench.config.layout import Layout
from efficientbench.config.schema import RunConfig

Number = TypeVar("Number", int, float)


def over_layers(model: ModelConfig, figure: Callable[[ModelConfig], Number]) -> Number:
    """Return the sum of a figure over all layers; `figure` gets the view of a layer's kind."""
    return sum(count * figure(view) for view, count in model.counted_views)


def over_stage(config: RunConfig, layout: Layout, figure: Callable[[RunConfig], Number]) -> Number:
    """Return the sum of a figure over the layers of one pipeline rank; `figure` gets the run with a kind's view."""
    return sum(count * figure(each) for each, count in stage_views(config, layout))


def stage_views(config: RunConfig, layout: Layout) -> list[tuple[RunConfig, int]]:
    """Return the run with the view of each kind of layer, and the number of such layers on one pipeline rank."""
    return [(with_view(config, view), count // layout.pp) for view, count in config.model.counted_views]


def with_view(config: RunConfig, view: ModelConfig) -> RunConfig:
    """Return the run as if all layers were of a kind."""
    return config if view is config.model else config.model_copy(update={"model": view})
