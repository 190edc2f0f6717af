"""The architecture: an attention variant and a positional encoding in the backbone.

`kind` names the variant, whose declaration has the keys of its section: see architecture/variant.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias, Union

from pydantic import (
    Field,
    SerializeAsAny,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticUseDefault

from efficientbench.architecture.registry import (
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
from efficientbench.architecture.variant import AttentionConfig, AttentionVariant, Decoder, PositionConfig
from efficientbench.basics.part import require

if TYPE_CHECKING:
    _Attention: TypeAlias = AttentionConfig
    _Position: TypeAlias = PositionConfig
else:
    _Attention = Union[tuple(each.config for each in ATTENTION.values())]  # noqa: UP007
    _Position = Union[tuple(each.config for each in POSITIONS.values())]  # noqa: UP007


class ModelConfig(Decoder):
    """The decoder: its backbone with an attention variant and a positional encoding."""

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

    @field_validator("attention", "position", mode="wrap")
    @classmethod
    def _as_declared(cls, given: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        """Validate a section by its variant's declaration, with the default kind and the backbone's widths if unset."""
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
                # hidden_size or head_dim has its own error, which missing widths would only repeat.
                raise PydanticUseDefault
            given = {**variant.config.proportions(info.data["hidden_size"], info.data["head_dim"]), **given}
        if "heads" in given.values():
            if "heads" not in info.data:
                raise PydanticUseDefault
            # `heads` stands for the backbone's number of heads, so that one variant suits every size.
            given = {key: info.data["heads"] if value == "heads" else value for key, value in given.items()}
        return handler(given) if variant is None or kind in OWN[section] else variant.config.model_validate(given)

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        attention, position = attention_of(self), position_of(self)
        normed = " and ".join(kind for kind, each in ATTENTION.items() if each.qk_norm)
        require(
            (
                self.heads % self.key_value_heads == 0,
                f"{self.heads} heads cannot be shared evenly by {self.key_value_heads} query groups: "
                "attention.query_groups must divide heads",
            ),
            (
                attention.qk_norm or not self.qk_norm,
                f"qk_norm is defined for {normed} alone, and attention.kind is {self.attention.kind}: set "
                "qk_norm=false",
            ),
            (
                position.place in attention.places,
                attention.other_positions.format(
                    attention=self.attention.kind, position=self.position.kind, taken=positions_at(attention.places)
                ),
            ),
            (
                self.position.rope_base is None or self.rotated_dim % 2 == 0,
                f"RoPE rotates pairs of dimensions: {self.attention.rotated_key} must be even, not {self.rotated_dim}",
            ),
        )
        return self
