"""The tiny models and the layouts in which a variant is checked, from its declaration.

`check-variant` takes its cases from here, and so do the tests of this project's own variants.
"""

from __future__ import annotations

from collections.abc import Mapping

from efficientbench.architecture.registry import POSITIONS, Section, find
from efficientbench.architecture.variant import AttentionVariant
from efficientbench.config.combination_table import PARTS

BASE = "dense_1.5B"
"""The run whose smoke shapes a tiny model begins with."""
SHAPES = (
    *("model.hidden_size=48", "model.heads=4", "model.head_dim=12", "model.ffn_hidden_size=80"),
    *("training.dtype=fp32", "training.micro_batch_size=2", "measurement.warmup_steps=0"),
)
"""Overrides of BASE for a model whose step takes milliseconds, and which two ranks can share."""

LAYOUTS: dict[str, Mapping[str, object]] = {
    "tensor parallel": PARTS["TP"],
    "sequence parallel": PARTS["TP + SP"],
    "context parallel": PARTS["CP"],
    "pipeline": PARTS["PP"],
    "interleaved pipeline": PARTS["PP interleaved"],
    "data parallel": PARTS["DP"],
    "full recomputation": PARTS["recompute"],
    "selective recomputation": {"training.recompute": "selective"},
}
"""Layout → its keys. `combination_table.problems` says which of them a variant does not support."""


def tiny_models(section: Section, kind: str) -> dict[str, tuple[str, ...]]:
    """Return the tiny models of a loaded variant: name → overrides of BASE, beside SHAPES.

    The first is called by the variant's kind, the others by `<kind>, <what they have>`. An attention variant gets the
    first of this project's positional encodings that it takes.
    """
    variant = find(section, kind)
    assert variant is not None
    words = [f"model.{section}.kind={kind}", *variant.tiny]
    if isinstance(variant, AttentionVariant):
        taken = next(name for name, each in POSITIONS.items() if each.place in variant.places)
        words.append(f"model.position.kind={taken}")
    return {kind: tuple(words), **{f"{kind}, {name}": (*words, *more) for name, more in variant.further.items()}}


def overrides_of(keys: Mapping[str, object]) -> tuple[str, ...]:
    """Return a layout's keys as `key=value`."""
    return tuple(f"{key}={str(value).lower()}" for key, value in keys.items())
