"""Small configurations that keep the structure of the real ones, and the table of models that tests go through."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from efficientbench.architecture.registry import (
    ATTENTION,
    POSITIONS,
    SECTIONS,
    find,
    load,
)
from efficientbench.architecture.variant import missing
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig
from efficientbench.costs.model import cache_bytes
from efficientbench.doctor.variant.cases import BASE, SHAPES, tiny_models

TINY = [
    *SHAPES,
    "model.layers=2",
    "model.vocab_size=131",
    "training.seq_len=16",
    "training.global_batch_size=8",
    "training.steps=10",
    # By itself AdamW's first update follows the signs of gradients, also of those that are rounding alone.
    "training.epsilon=1e-3",
    "parallel.dp=1",
    # Several buckets even here: gradients of one are sent while others are computed.
    "parallel.bucket_size=5000",
]

BACKBONE = [
    "model.norm_weights=zero_centred",
    "model.embedding_norm=true",
    "model.qk_norm=true",
    "model.activation=relu2",
    "model.tied=false",
    "model.logit_softcap=3",
]
"""Every key of the backbone that a published model sets, but for norms without weights, which hide their gradients."""


Models = dict[str, tuple[str, tuple[str, ...]]]
"""Tiny model → the run that it is a small one of, and overrides."""

ATTENTIONS: Models = {
    name: (BASE, words) for kind in ATTENTION for name, words in tiny_models("attention", kind).items()
}
"""The models of every attention variant, from its declaration."""
ENCODINGS: Models = {
    name: (BASE, words) for kind in list(POSITIONS)[1:] for name, words in tiny_models("position", kind).items()
}
"""The models of every positional encoding but the default, which the attention variants have."""
EVERY_KEY = "every key of the backbone"
PATTERN, WINDOW, SINKS, FINE = "layers of two kinds", "window", "sinks and gate", "shared experts and a bias"
BACKBONES: Models = {
    "moe": ("moe_1.5Bx8", ()),
    "nanochat": ("nanochat_d12", ()),
    EVERY_KEY: (BASE, tuple(BACKBONE)),
    WINDOW: (BASE, ("model.attention.window=5",)),
    SINKS: (BASE, ("model.attention.sinks=true", "model.attention.gate=true", "model.position.share=0.5")),
    PATTERN: (
        BASE,
        ("model.pattern=[bare,mla]", "model.kinds={bare: {position: {kind: none}, qk_norm: true}}"),
    ),
    FINE: (
        "moe_fine_shared_1.5Bx8",
        (
            *("model.moe.experts=6", "model.moe.top_k=3", "model.ffn_hidden_size=24", "model.moe.scale=1.5"),
            # So large that a few steps show it.
            *("model.moe.bias_rate=0.05", "model.first=[dense]"),
            "model.kinds={dense: {moe: false, ffn_hidden_size: 56}}",
        ),
    ),
}
"""What no variant declares."""
MODELS: Models = ATTENTIONS | ENCODINGS | BACKBONES
CONDITIONED = dict.fromkeys(("gdn", "kda"), ("model.norm_epsilon=1e-3", "model.init_std=0.2"))
"""Attention variant → overrides with which the rounding of float32 stays small in its gradients.

Where a query is nearly orthogonal to the keys of its past, an output of the delta rule is a difference that cancels, as
short as 1e-6. The norm behind it divides by no less than the root of its epsilon, and the gradient grows alike.
"""


def conditioned(name: str) -> tuple[str, ...]:
    """Return the overrides of CONDITIONED for a model of ATTENTIONS, or for a variant."""
    return CONDITIONED.get(name.partition(",")[0], ())


def tiny(name: str, *overrides: str) -> RunConfig:
    """Return the run called `name` with shapes that take milliseconds."""
    return resolve(name, smoke=True, overrides=[*TINY, *_declared(name, overrides), *overrides])


def tiny_model(name: str, *overrides: str) -> RunConfig:
    """Return the tiny model of MODELS."""
    run, words = MODELS[name]
    return tiny(run, *words, *overrides)


def chosen(models: Models, supports: Callable[[RunConfig], object]) -> list[str]:
    """Return the names of those models that support something."""
    return [name for name in models if supports(_cached(name))]


def has_table(config: RunConfig) -> bool:
    """Return whether the model's positional encoding trains parameters."""
    own = config.model.own_view
    return own.position_variant.costs.parameters(own) > 0


def has_matrices(config: RunConfig) -> bool:
    """Return whether Muon can train the model."""
    return all(view.attention_variant.matrices is not None for view in config.model.views.values())


def decodes(config: RunConfig) -> bool:
    """Return whether the model generates text from a cache."""
    return missing(lambda: cache_bytes(config.model, 1, "fp32")) is None


def ends_with_documents(config: RunConfig) -> bool:
    """Return whether the model's attention can end where documents do."""
    return all(view.attention_variant.within_documents is not None for view in config.model.views.values())


def is_plain(config: RunConfig) -> bool:
    """Return whether the configured kernel computes the model's attention, rather than the variant's own."""
    return all(view.plain_scores is not None for view in config.model.views.values())


@functools.cache
def _cached(name: str) -> RunConfig:
    return tiny_model(name)


@functools.cache
def _kinds(name: str) -> dict[str, str]:
    model = resolve(name).model
    return {"attention": model.attention.kind, "position": model.position.kind}


def _declared(name: str, overrides: tuple[str, ...]) -> Iterator[str]:
    """Yield the overrides that the variants of a run declare for their tiny models."""
    for section in SECTIONS:
        key = f"model.{section}.kind="
        kind = next((each.removeprefix(key) for each in reversed(overrides) if each.startswith(key)), None)
        kind = _kinds(name)[section] if kind is None else kind
        load(section, kind)
        variant = find(section, kind)
        yield from variant.tiny if variant else ()
