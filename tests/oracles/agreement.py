"""Models of ours beside other code on the same weights: what each pair shows, and how closely the two agree."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from oracles.oracle import beside, build, gradient_errors, relative_error, weights_of
from support.configs import BASE, CONDITIONED, tiny

from efficientbench.architecture.gqa import GQAConfig
from efficientbench.architecture.model import ModelConfig
from efficientbench.config.schema import RunConfig

OTHERS: Mapping[str, tuple[str, str | None, str]] = {
    "formula": ("plain_decoder", None, "the formula in float64"),
    "megatron": ("megatron_gpt", "megatron-core", "GPTModel"),
    "qwen2": ("gqa", "transformers", "Qwen2"),
    "granite_swa": ("granite_swa", "transformers", "GraniteSWA"),
    "smollm3": ("smollm3", "transformers", "SmolLM3"),
    "qwen3_next": ("qwen3_next", "transformers", "Qwen3-Next"),
    "deepseek_v2": ("mla", "transformers", "DeepSeek-V2"),
    "nsa": ("nsa", None, "the equations, dense"),
    "qwen3_5": ("gdn", "transformers", "Qwen3.5 in float64"),
    "bamba": ("mamba2", "transformers", "Bamba in float64"),
    "kimi_linear": ("kda", "transformers", "Kimi Linear in float64"),
}
"""Other code: its module of oracles, the package that it comes from, and its name."""

UNBIASED, SINKS = "model.attention.qkv_bias=false", "model.attention.sinks=true"
WINDOWS = ("model.layers=4", "model.kinds.swa.attention.window=5", UNBIASED)
THREE_TO_ONE = (*WINDOWS, "model.pattern=[swa,swa,swa,own]")
NOPE = (*WINDOWS, "model.pattern=[swa,swa,swa,full]", "model.kinds.full.position.kind=none")
HEADS = (UNBIASED, "model.qk_norm=true", "model.position.share=0.5")
GATED = (*HEADS, "model.attention.gate=true")
BAMBA = ("model.hidden_size=64", "model.head_dim=16", UNBIASED)

PAIRS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "grouped queries": ((), ("qwen2", "formula", "megatron")),
    "windows": (THREE_TO_ONE, ("smollm3", "formula", "megatron")),
    "windows, full layers without positions": (NOPE, ("granite_swa", "smollm3", "formula", "megatron")),
    "windows and sinks, full layers without positions": ((*NOPE, SINKS), ("granite_swa", "formula", "megatron")),
    "windows with a base of their own, sinks": (
        (*THREE_TO_ONE, SINKS, "model.kinds.swa.position.base=100"),
        ("granite_swa", "formula"),
    ),
    "layers without positions": (
        ("model.layers=3", "model.pattern=[own,free,own]", "model.kinds.free.position.kind=none", UNBIASED),
        ("smollm3", "formula", "megatron"),
    ),
    "gate, QK-norm, half of RoPE": (GATED, ("qwen3_next", "formula", "megatron")),
    "all of these in one group": (
        (*NOPE, *GATED, SINKS, "model.attention.query_groups=1"),
        ("formula", "megatron"),
    ),
    "latents (MLA)": (("model.attention.kind=mla",), ("deepseek_v2",)),
    "sparse (NSA)": (("model.attention.kind=nsa",), ("nsa",)),
    "recurrent (GDN)": (
        ("model.attention.kind=gdn", "model.position.kind=none", *CONDITIONED["gdn"]),
        ("qwen3_5",),
    ),
    "recurrent, every fourth gated (GDN 3:1)": (
        ("model.layers=4", "model.pattern=[gdn,gdn,gdn,own]", *GATED, *CONDITIONED["gdn"]),
        ("qwen3_5",),
    ),
    "recurrent (Mamba-2)": (("model.attention.kind=mamba2", "model.position.kind=none"), ("bamba",)),
    "recurrent, every fourth full (Mamba-2 3:1)": (
        ("model.layers=4", "model.pattern=[mamba2,mamba2,mamba2,own]", *BAMBA),
        ("bamba",),
    ),
    "recurrent (KDA)": (
        ("model.attention.kind=kda", "model.position.kind=none", *CONDITIONED["kda"]),
        ("kimi_linear",),
    ),
    "recurrent, MLA (KDA 3:1)": (
        (
            *("model.layers=4", "model.pattern=[kda,kda,kda,own]", "model.attention.kind=mla"),
            *("model.position.kind=none", *CONDITIONED["kda"]),
        ),
        ("kimi_linear",),
    ),
}
"""A model by what it has: its overrides, and the other code that computes it."""


@dataclass(frozen=True)
class Agreement:
    """Largest differences of ours from other code, relative to its largest value of each tensor."""

    logits: float
    loss: float
    gradients: float

    @property
    def worst(self) -> float:
        """The largest of them."""
        return max(self.logits, self.loss, self.gradients)


def configured(name: str) -> RunConfig:
    """The model of PAIRS, whose attention is far from uniform, on an odd number of tokens."""
    overrides, _ = PAIRS[name]
    own = {f"model.attention.kind={kind}" for kind in ("nsa", "gdn", "kda", "mamba2")} & set(overrides)
    length = () if own else ("training.seq_len=23",)
    return tiny(BASE, "model.init_std=0.2", *length, *overrides)


def oracle_of(other: str) -> Any:
    """The module of OTHERS."""
    return importlib.import_module(f"oracles.{OTHERS[other][0]}")


def agreement(name: str, other: str) -> Agreement:
    """Compute the model of PAIRS on one batch, by ours and by other code."""
    config, module = configured(name), oracle_of(other)
    model = build(config)
    oracle = module.same_weights(weights_of(model), config.model)
    logits, loss, gradients = beside(model, config, lambda tokens: getattr(found := oracle(tokens), "logits", found))
    errors = gradient_errors(module.renamed(gradients, config.model), oracle)
    return Agreement(logits, loss, max(errors.values()))


def agreement_with_gpt_oss(window: int | None) -> tuple[float, float]:
    """Compute the kernel of sinks over more tokens than a block of queries has, by ours and by transformers' gpt-oss.

    Returns:
        The largest relative difference of the output, and of a gradient.
    """
    from oracles.gpt_oss import attend

    from efficientbench.model.kernels.window_attention import window_attention

    generator, length = torch.Generator().manual_seed(3), 131
    shapes = ((length, 2, 4, 8), (length, 2, 2, 8), (length, 2, 2, 8), (4,))
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    query, key, value, sinks = inputs
    expected = attend(query, key, value, 0.3, window, sinks)
    out = window_attention(query, key, value, 0.3, window, sinks)
    grad = torch.randn(out.shape, generator=generator)
    found, wanted = (torch.autograd.grad(each, inputs, grad) for each in (out, expected))
    return relative_error(out, expected), max(map(relative_error, found, wanted))


def mechanisms(model: ModelConfig) -> set[str]:
    """What softmax attention has in some layers of a model."""
    views = list(model.views.values())
    bases, found = {view.position.rope_base for view in views}, set()
    for view in views:
        attention = view.attention
        assert isinstance(attention, GQAConfig)
        found |= {name for name in ("window", "sinks", "gate") if getattr(attention, name)}
        found |= {"QK-norm"} if view.qk_norm else set()
        found |= {"part of RoPE"} if view.rotated_dim < view.head_dim and view.position.rope_base else set()
    found |= {"no positions"} if None in bases else set()
    return found | ({"bases of RoPE by kind"} if len(bases - {None}) > 1 else set())


MECHANISMS = ("window", "sinks", "no positions", "bases of RoPE by kind", "part of RoPE", "gate", "QK-norm")


def shown_by() -> dict[str, set[str]]:
    """Each mechanism, with the other code that computes a model of PAIRS with it."""
    softmax = {name: mechanisms(configured(name).model) for name in PAIRS if "(" not in name}
    having = {each: [name for name in softmax if each in softmax[name]] for each in MECHANISMS}
    return {each: {other for name in names for other in PAIRS[name][1]} for each, names in having.items()}
