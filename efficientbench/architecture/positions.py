"""Declarations of the positional encodings: keys, formulas, and what each supports."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from efficientbench.architecture.variant import (
    WITHOUT_PARAMETERS,
    Decoder,
    PositionConfig,
    PositionCosts,
    PositionVariant,
)
from efficientbench.basics.part import Part, PositiveFloat, PositiveInt

KIND = "positional encoding"
LAYERS = "efficientbench.model.position"


class RopeScaling(Part):
    """Llama 3.1's frequencies for contexts beyond the trained length, which transformers calls `llama3`."""

    factor: PositiveFloat = Field(default=8.0, description="divisor of the frequencies of the longest wavelengths")
    low_freq_factor: PositiveFloat = Field(
        default=1.0, description="wavelengths above `original_seq_len` / this have frequencies divided by `factor`"
    )
    high_freq_factor: PositiveFloat = Field(
        default=4.0, description="wavelengths below `original_seq_len` / this stay; those between pass over"
    )
    original_seq_len: PositiveInt = Field(default=8192, description="tokens of the sequences before the scaling")

    @model_validator(mode="after")
    def _passes_over(self) -> RopeScaling:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(f"high_freq_factor must be above low_freq_factor, which is {self.low_freq_factor:g}")
        return self


class RopeConfig(PositionConfig):
    """Rotary position embedding (arXiv 2104.09864) on the whole head; with MLA on `qk_rope_head_dim` of it."""

    later_keys: ClassVar[tuple[str, ...]] = ("share",)

    kind: Literal["rope"] = Field(default="rope", description=KIND)
    base: PositiveFloat = Field(default=1e6, description="base of the rotation frequencies")
    scaling: RopeScaling | None = Field(default=None, description="Llama 3.1's scaling of the frequencies")
    share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="share of these dimensions that is rotated, the last ones; unset: all"
    )

    def rotated(self, width: int) -> int:
        return width if self.share is None else int(width * self.share)

    @property
    def rope_base(self) -> float:
        return self.base

    @property
    def rope_scaling(self) -> RopeScaling | None:
        return self.scaling


class AbsoluteConfig(PositionConfig):
    """Fixed sinusoids added to the embedding, with the spread of its initial weights (arXiv 1706.03762, 3.5)."""

    kind: Literal["absolute"] = Field(default="absolute", description=KIND)


class LearnableAbsoluteConfig(PositionConfig):
    """A trained row for each position, added to the embedding, as in GPT-2."""

    kind: Literal["learnable_absolute"] = Field(default="learnable_absolute", description=KIND)
    max_seq_len: PositiveInt = Field(
        default=2048, description="rows of the table, and so the longest sequence in tokens"
    )

    @property
    def longest(self) -> int:
        return self.max_seq_len


class RelativeConfig(PositionConfig):
    """T5's bias on the scores, by bucket of the distance and head; one table for all layers (arXiv 1910.10683)."""

    kind: Literal["relative"] = Field(default="relative", description=KIND)
    buckets: Annotated[int, Field(ge=2)] = Field(default=32, description="buckets for distances between tokens")
    max_distance: PositiveInt = Field(
        default=128, description="distance in tokens from which on all distances share the last bucket"
    )

    @model_validator(mode="after")
    def _distances_fill_the_buckets(self) -> RelativeConfig:
        if self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"max_distance {self.max_distance} must be above {self.buckets // 2}, half of the {self.buckets} "
                "buckets: that many distances have a bucket of their own"
            )
        return self


class AlibiConfig(PositionConfig):
    """ALiBi: a bias on the scores that falls with distance, by a fixed slope for each head (arXiv 2108.12409)."""

    kind: Literal["alibi"] = Field(default="alibi", description=KIND)


class NoPositionConfig(PositionConfig):
    """NoPE: only the causal mask carries the order of tokens (arXiv 2305.19466)."""

    kind: Literal["none"] = Field(default="none", description=KIND)


def _rows(model: Decoder) -> int:
    assert isinstance(model.position, LearnableAbsoluteConfig)
    return model.position.max_seq_len * model.hidden_size


def _table(model: Decoder) -> int:
    assert isinstance(model.position, RelativeConfig)
    return model.position.buckets * model.heads


VARIANTS = (
    PositionVariant(
        config=RopeConfig,
        layer=f"{LAYERS}:Rope.of",
        place="queries and keys",
        decodes=True,
        costs=WITHOUT_PARAMETERS,
        kernels="efficientbench.model.kernels.rope:KERNELS",
        context_parallel=True,
    ),
    PositionVariant(
        config=AbsoluteConfig,
        layer=f"{LAYERS}:Absolute.of",
        place="embedding",
        decodes=True,
        costs=WITHOUT_PARAMETERS,
        context_parallel=True,
        not_exported="transformers' classes that add sinusoids to the embedding (XGLM, …) have LayerNorm and no SwiGLU",
    ),
    PositionVariant(
        config=LearnableAbsoluteConfig,
        layer=f"{LAYERS}:LearnableAbsolute.of",
        place="embedding",
        decodes=True,
        costs=PositionCosts(parameters=_rows, rank_parameters=lambda model, tp, first: _rows(model) if first else 0),
        context_parallel=True,
        # The spread of the sinusoids of `model.position.Absolute`.
        table_divisor=math.sqrt(2),
        not_exported="transformers' classes with a trained row for each position (GPT-2, OPT, …) have LayerNorm and no "
        "SwiGLU",
        tiny=("model.position.max_seq_len=64",),
    ),
    PositionVariant(
        config=RelativeConfig,
        layer=f"{LAYERS}:Relative.of",
        place="scores",
        decodes=True,
        costs=PositionCosts(parameters=_table, rank_parameters=lambda model, tp, first: _table(model) // tp),
        not_exported="transformers' classes with T5's bias on the scores (T5, …) are encoders with decoders, with no "
        "SwiGLU of this kind",
        # So few distances fill every bucket.
        tiny=("model.position.buckets=8", "model.position.max_distance=12"),
    ),
    PositionVariant(
        config=AlibiConfig,
        layer=f"{LAYERS}:Alibi.of",
        place="scores",
        decodes=True,
        costs=WITHOUT_PARAMETERS,
        not_exported="transformers' classes with ALiBi (Bloom, MPT, Falcon) have LayerNorm and no SwiGLU",
    ),
    PositionVariant(
        config=NoPositionConfig,
        layer=f"{LAYERS}:Position.of",
        place="nothing",
        decodes=True,
        costs=WITHOUT_PARAMETERS,
        context_parallel=True,
    ),
)
