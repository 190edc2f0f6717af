"""The architecture: attention and positional encoding in the backbone. Each variant is one class with a `kind`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticUseDefault

from efficientbench.config.backbone import Backbone
from efficientbench.config.part import Part, PositiveFloat, PositiveInt

ATTENTION_KIND = "attention variant: gqa, mla or nsa"
POSITION_KIND = "positional encoding: rope, absolute, learnable_absolute, relative, alibi or none"


def _require(*rules: tuple[bool, str]) -> None:
    """Raise ValueError with the message of the first rule that does not hold."""
    for holds, message in rules:
        if not holds:
            raise ValueError(message)


class GQAConfig(Part):
    """Grouped-query attention (arXiv 2305.13245); one group is MQA, as many groups as heads is MHA."""

    kind: Literal["gqa"] = Field(default="gqa", description=ATTENTION_KIND)
    query_groups: PositiveInt = Field(
        default=2, description="key/value heads; each serves heads / query_groups query heads"
    )
    qkv_bias: bool = Field(default=True, description="bias on the Q, K and V projections, as in Qwen2.5")


class MLAConfig(Part):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Widths that are not set follow the backbone's, in the proportions of DeepSeek-V2-Lite (`proportions`).
    """

    kind: Literal["mla"] = Field(default="mla", description=ATTENTION_KIND)
    q_lora_rank: PositiveInt | None = Field(
        default=None, description="width of the queries' latent; unset: queries have none"
    )
    kv_lora_rank: PositiveInt = Field(
        description="width of the latent that keys and values share; hidden_size / 4 unless set"
    )
    qk_nope_head_dim: PositiveInt = Field(
        description="width of the part of a query or key head without position; head_dim unless set"
    )
    qk_rope_head_dim: PositiveInt = Field(
        description="width of the part of a query head that RoPE rotates, and of the rotated key that all heads share; "
        "head_dim / 2 unless set"
    )
    v_head_dim: PositiveInt = Field(description="width of a value head; head_dim unless set")

    @staticmethod
    def proportions(hidden_size: int, head_dim: int) -> dict[str, int]:
        """Return MLA's default widths on a backbone of this hidden size and head dimension."""
        return {
            "kv_lora_rank": hidden_size // 4,
            "qk_nope_head_dim": head_dim,
            "qk_rope_head_dim": head_dim // 2,
            "v_head_dim": head_dim,
        }


class NSAConfig(Part):
    """Native Sparse Attention (arXiv 2502.11089): compressed tokens, selected blocks and a sliding window, gated."""

    kind: Literal["nsa"] = Field(default="nsa", description=ATTENTION_KIND)
    query_groups: PositiveInt = Field(
        default=2, description="key/value heads; each serves heads / query_groups query heads"
    )
    qkv_bias: bool = Field(default=True, description="bias on the Q, K and V projections, as in Qwen2.5")
    compress_block: PositiveInt = Field(default=32, description="tokens that one compressed key stands for (l)")
    compress_stride: PositiveInt = Field(
        default=16, description="tokens from one compressed key's start to the next (d)"
    )
    select_block: PositiveInt = Field(default=64, description="tokens in a block of the selected branch (l')")
    select_count: PositiveInt = Field(
        default=16, description="blocks that a query reads, with the first and two local ones (n)"
    )
    window: PositiveInt = Field(default=512, description="tokens in the sliding window, with the query's own (w)")

    @model_validator(mode="after")
    def _blocks_fit(self) -> NSAConfig:
        stride = self.compress_stride
        _require(
            (
                self.compress_block % stride == 0,
                f"compress_block {self.compress_block} is not a multiple of compress_stride {stride}",
            ),
            (
                self.select_block % stride == 0,
                f"select_block {self.select_block} is not a multiple of compress_stride {stride}",
            ),
            (
                self.compress_block <= self.select_block,
                f"compress_block {self.compress_block} must not be above select_block {self.select_block}",
            ),
            (
                self.select_count >= 3,
                f"select_count {self.select_count} leaves no room for the first and two local blocks: 3 or more",
            ),
        )
        return self


class RopeConfig(Part):
    """Rotary position embedding (arXiv 2104.09864) on the whole head; with MLA on `qk_rope_head_dim` of it."""

    kind: Literal["rope"] = Field(default="rope", description=POSITION_KIND)
    base: PositiveFloat = Field(default=1e6, description="base of the rotation frequencies")


class AbsoluteConfig(Part):
    """Fixed sinusoids added to the embedding, with the spread of its initial weights (arXiv 1706.03762, 3.5)."""

    kind: Literal["absolute"] = Field(default="absolute", description=POSITION_KIND)


class LearnableAbsoluteConfig(Part):
    """A trained row for each position, added to the embedding, as in GPT-2."""

    kind: Literal["learnable_absolute"] = Field(default="learnable_absolute", description=POSITION_KIND)
    max_seq_len: PositiveInt = Field(
        default=2048, description="rows of the table, and so the longest sequence in tokens"
    )


class RelativeConfig(Part):
    """T5's bias on the scores, by bucket of the distance and head; one table for all layers (arXiv 1910.10683)."""

    kind: Literal["relative"] = Field(default="relative", description=POSITION_KIND)
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


class AlibiConfig(Part):
    """ALiBi: a bias on the scores that falls with distance, by a fixed slope for each head (arXiv 2108.12409)."""

    kind: Literal["alibi"] = Field(default="alibi", description=POSITION_KIND)


class NoPositionConfig(Part):
    """NoPE: only the causal mask carries the order of tokens (arXiv 2305.19466)."""

    kind: Literal["none"] = Field(default="none", description=POSITION_KIND)


PositionConfig = RopeConfig | AbsoluteConfig | LearnableAbsoluteConfig | RelativeConfig | AlibiConfig | NoPositionConfig


class ModelConfig(Backbone):
    """The decoder: its backbone with an attention variant and a positional encoding."""

    attention: GQAConfig | MLAConfig | NSAConfig = Field(
        default=GQAConfig(), discriminator="kind", description="the attention variant and its own shapes"
    )
    position: PositionConfig = Field(default=RopeConfig(), discriminator="kind", description="the positional encoding")

    @property
    def key_value_heads(self) -> int:
        """Number of key and value heads in the attention kernel."""
        return self.heads if isinstance(self.attention, MLAConfig) else self.attention.query_groups

    @property
    def rotated_dim(self) -> int:
        """Dimensions of a query or key head that RoPE rotates."""
        return self.attention.qk_rope_head_dim if isinstance(self.attention, MLAConfig) else self.head_dim

    @field_validator("attention", mode="before")
    @classmethod
    def _complete_attention(cls, attention: object, info: ValidationInfo) -> object:
        """Make attention without a kind GQA, and derive MLA's widths from the backbone."""
        if not isinstance(attention, Mapping):
            return attention
        if attention.get("kind") != "mla":
            return {"kind": "gqa", **attention}
        if not {"hidden_size", "head_dim"} <= info.data.keys():
            # The mistake in hidden_size or head_dim is reported; missing widths of MLA would only repeat it.
            raise PydanticUseDefault
        return {**MLAConfig.proportions(info.data["hidden_size"], info.data["head_dim"]), **attention}

    @field_validator("position", mode="before")
    @classmethod
    def _complete_position(cls, position: object) -> object:
        """Make a positional encoding without a kind RoPE."""
        return {"kind": "rope", **position} if isinstance(position, Mapping) else position

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        attention, position = self.attention.kind, self.position.kind
        rotated = "attention.qk_rope_head_dim" if attention == "mla" else "head_dim"
        _require(
            (
                self.heads % self.key_value_heads == 0,
                f"{self.heads} heads cannot be shared evenly by {self.key_value_heads} query groups: "
                "attention.query_groups must divide heads",
            ),
            (
                attention == "gqa" or not self.qk_norm,
                f"qk_norm is defined for gqa alone, and attention.kind is {attention}: set qk_norm=false",
            ),
            (
                attention != "mla" or position == "rope",
                f"position.kind: MLA has a part of its keys for RoPE and takes no other encoding, not {position!r}",
            ),
            (
                position != "rope" or self.rotated_dim % 2 == 0,
                f"RoPE rotates pairs of dimensions: {rotated} must be even, not {self.rotated_dim}",
            ),
            (
                attention != "nsa" or position not in ("relative", "alibi"),
                f"NSA's branches take no bias on their scores, as position.kind={position} is: set position.kind to "
                "rope, absolute, learnable_absolute or none",
            ),
        )
        return self
