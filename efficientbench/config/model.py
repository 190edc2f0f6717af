"""The architecture: shapes of the backbone, attention, positional encoding, experts.

The keys of attention and positional encoding are those of the variant that `kind` names: see config/variant.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias, Union

from pydantic import (
    Field,
    SerializeAsAny,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticUseDefault

from efficientbench.config.part import NonNegativeFloat, Part, PositiveFloat, PositiveInt, require
from efficientbench.config.registry import (
    ATTENTION,
    OWN,
    POSITIONS,
    Section,
    attention_of,
    find,
    outside,
    position_of,
    positions_at,
)
from efficientbench.config.variant import AttentionConfig, AttentionVariant, PositionConfig

if TYPE_CHECKING:
    _Attention: TypeAlias = AttentionConfig
    _Position: TypeAlias = PositionConfig
else:
    _Attention = Union[tuple(each.config for each in ATTENTION.values())]  # noqa: UP007
    _Position = Union[tuple(each.config for each in POSITIONS.values())]  # noqa: UP007


class MoEConfig(Part):
    """Mixture of experts instead of every feed-forward layer: dropless, each expert of that layer's shape."""

    experts: Annotated[int, Field(ge=2)] = Field(default=8, description="number of experts in a layer")
    top_k: PositiveInt = Field(default=2, description="experts that compute a token, weighted by a softmax over them")
    auxiliary_loss: NonNegativeFloat = Field(
        default=0.01,
        description="factor on each layer's load-balancing loss (arXiv 2101.03961, eq. 4); 0: no such loss",
    )

    @model_validator(mode="after")
    def _chooses_among_them(self) -> MoEConfig:
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than the {self.experts} experts there are to choose from")
        return self


class ModelConfig(Part):
    """Shapes of the decoder, whose backbone is that of the Qwen2.5 family."""

    layers: PositiveInt = Field(description="number of transformer layers")
    hidden_size: PositiveInt = Field(description="width of the residual stream")
    heads: PositiveInt = Field(description="number of query heads")
    head_dim: PositiveInt = Field(description="width of one query or key head")
    ffn_hidden_size: PositiveInt = Field(description="width of the SwiGLU feed-forward layer")
    moe: MoEConfig | None = Field(default=None, description="experts instead of the dense feed-forward layer")
    vocab_size: PositiveInt = Field(
        description="tokens in the vocabulary; the embedding's rows are padded for tensor parallelism"
    )
    norm_epsilon: PositiveFloat = Field(default=1e-6, description="epsilon inside RMSNorm's square root")
    init_std: PositiveFloat = Field(
        default=0.02,
        description="standard deviation of initial weights; output projections get init_std / sqrt(2 · layers)",
    )
    embedding_multiplier: PositiveFloat = Field(
        default="sqrt_hidden_size",
        validate_default=True,
        description="factor on the embedding, positions included, under every positional encoding alike; "
        "sqrt_hidden_size: √hidden_size (arXiv 1706.03762, 3.4)",
    )
    attention: SerializeAsAny[_Attention] = Field(
        default=next(variant.config(kind=kind) for kind, variant in ATTENTION.items()),
        discriminator="kind",
        description="the attention variant and its own shapes",
    )
    position: SerializeAsAny[_Position] = Field(
        default=next(variant.config(kind=kind) for kind, variant in POSITIONS.items()),
        discriminator="kind",
        description="the positional encoding",
    )

    @property
    def key_value_heads(self) -> int:
        """Number of key and value heads in the attention kernel."""
        return self.attention.key_value_heads(self.heads)

    @property
    def rotated_dim(self) -> int:
        """Dimensions of a query or key head that RoPE rotates."""
        return self.attention.rotated_dim(self.head_dim)

    @field_validator("embedding_multiplier", mode="before")
    @classmethod
    def _multiplier_of_the_width(cls, multiplier: object, info: ValidationInfo) -> object:
        """Turn the name of √hidden_size into the number."""
        # Where hidden_size is missing, its own mistake is reported, and this one would only repeat it.
        return math.sqrt(info.data.get("hidden_size", 1)) if multiplier == "sqrt_hidden_size" else multiplier

    @field_validator("attention", "position", mode="wrap")
    @classmethod
    def _as_declared(cls, given: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        """Validate a section as its variant declares it; it is of the default kind, and has the backbone's widths."""
        section: Section = "attention" if info.field_name == "attention" else "position"
        if not isinstance(given, Mapping):
            return given if isinstance(given, AttentionConfig | PositionConfig) else handler(given)
        given = {"kind": next(iter(OWN[section])), **given}
        kind = given["kind"]
        variant = find(section, kind)
        if variant is None and isinstance(kind, str) and outside(kind):
            raise ValueError(f"kind {kind!r} is code from outside this project: only a command that names it runs it")
        if isinstance(variant, AttentionVariant) and variant.config.proportions(0, 0):
            if not {"hidden_size", "head_dim"} <= info.data.keys():
                # The mistake in hidden_size or head_dim is reported; missing widths would only repeat it.
                raise PydanticUseDefault
            given = {**variant.config.proportions(info.data["hidden_size"], info.data["head_dim"]), **given}
        return handler(given) if variant is None or kind in OWN[section] else variant.config.model_validate(given)

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        attention, position = attention_of(self), position_of(self)
        require(
            (
                self.heads % self.key_value_heads == 0,
                f"{self.heads} heads cannot be shared evenly by {self.key_value_heads} query groups: "
                "attention.query_groups must divide heads",
            ),
            (
                position.place in attention.places,
                attention.other_positions.format(
                    attention=self.attention.kind, position=self.position.kind, taken=positions_at(attention.places)
                ),
            ),
            (
                position.place != "queries and keys" or self.rotated_dim % 2 == 0,
                f"RoPE rotates pairs of dimensions: {self.attention.rotated_key} must be even, not {self.rotated_dim}",
            ),
        )
        return self
