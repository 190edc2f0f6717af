"""RunConfig and its parts: everything that decides what a run computes and measures.

Every part is frozen and refuses keys that it does not know. A field's description says what it is, in which unit.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticUseDefault

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Recompute = Literal["none", "selective", "full"]
Decay = Annotated[float, Field(ge=0, lt=1)]
# A name becomes a folder: it starts with a letter or digit and holds no separator, so it cannot leave its parent.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]


class Part(BaseModel):
    """A frozen piece of configuration that refuses unknown keys, infinities and NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MoEConfig(Part):
    """Mixture of experts in every layer's place of the feed-forward layer, dropless, each expert of its shape."""

    experts: Annotated[int, Field(ge=2)] = Field(default=8, description="experts of a layer")
    top_k: PositiveInt = Field(default=2, description="experts that a token goes to; their weights are a softmax")
    auxiliary_loss: NonNegativeFloat = Field(
        default=0.01, description="factor on each layer's load-balancing loss (arXiv 2101.03961, eq. 4); 0: none"
    )

    @model_validator(mode="after")
    def _chooses_among_them(self) -> MoEConfig:
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than the {self.experts} experts there are to choose from")
        return self


class GQAConfig(Part):
    """Grouped-query attention (arXiv 2305.13245); one group is MQA, as many groups as heads is MHA."""

    kind: Literal["gqa"] = "gqa"
    query_groups: PositiveInt = Field(
        default=2, description="key/value heads; each serves heads / query_groups query heads"
    )
    qkv_bias: bool = Field(default=True, description="bias on the Q, K and V projections, as in Qwen2.5")


class MLAConfig(Part):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Widths that are not set follow the backbone's in the proportions of DeepSeek-V2-Lite: see `proportions`.
    """

    kind: Literal["mla"] = "mla"
    q_lora_rank: PositiveInt | None = Field(
        default=None, description="width of the queries' latent; unset: queries are not compressed"
    )
    kv_lora_rank: PositiveInt = Field(description="width of the latent that keys and values share; hidden_size / 4")
    qk_nope_head_dim: PositiveInt = Field(description="part of a query or key head without position; head_dim")
    qk_rope_head_dim: PositiveInt = Field(
        description="part of a query head that RoPE rotates, and the one rotated key of all heads; head_dim / 2"
    )
    v_head_dim: PositiveInt = Field(description="width of a value head; head_dim")

    @staticmethod
    def proportions(hidden_size: int, head_dim: int) -> dict[str, int]:
        """The widths of MLA on a backbone with these."""
        return {
            "kv_lora_rank": hidden_size // 4,
            "qk_nope_head_dim": head_dim,
            "qk_rope_head_dim": head_dim // 2,
            "v_head_dim": head_dim,
        }


class NSAConfig(Part):
    """Native Sparse Attention (arXiv 2502.11089): compressed tokens, selected blocks and a sliding window, gated."""

    kind: Literal["nsa"] = "nsa"
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
        default=16, description="blocks that a query reads, the first and two local ones among them (n)"
    )
    window: PositiveInt = Field(default=512, description="tokens in the sliding window, the query's own included (w)")

    @model_validator(mode="after")
    def _blocks_fit(self) -> NSAConfig:
        for name in ("compress_block", "select_block"):
            if getattr(self, name) % self.compress_stride:
                raise ValueError(
                    f"{name} {getattr(self, name)} is not a multiple of compress_stride {self.compress_stride}"
                )
        if self.compress_block > self.select_block:
            raise ValueError(f"compress_block {self.compress_block} must not be above select_block {self.select_block}")
        if self.select_count < 3:
            raise ValueError(
                f"select_count {self.select_count} leaves no room for the first and two local blocks: 3 or more"
            )
        return self


class RopeConfig(Part):
    """Rotary position embedding (arXiv 2104.09864) on the whole head dimension; with MLA on the part that it sets."""

    kind: Literal["rope"] = "rope"
    base: PositiveFloat = Field(default=1e6, description="base of the rotation frequencies")


class AbsoluteConfig(Part):
    """Fixed sinusoids added to the embedding, which is scaled by √hidden_size (arXiv 1706.03762, 3.4 and 3.5)."""

    kind: Literal["absolute"] = "absolute"


class LearnableAbsoluteConfig(Part):
    """A trained row for each position, added to the embedding, as in GPT-2."""

    kind: Literal["learnable_absolute"] = "learnable_absolute"
    max_seq_len: PositiveInt = Field(
        default=2048, description="rows of the table: the longest sequence that the model can read"
    )


class RelativeConfig(Part):
    """T5's bias on the scores, by bucket of the distance and head; one table for all layers (arXiv 1910.10683)."""

    kind: Literal["relative"] = "relative"
    buckets: Annotated[int, Field(ge=2)] = Field(default=32, description="buckets that distances fall into")
    max_distance: PositiveInt = Field(default=128, description="distance from which on all share the last bucket")

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

    kind: Literal["alibi"] = "alibi"


class NoPositionConfig(Part):
    """NoPE: the causal mask alone tells the order of tokens (arXiv 2305.19466)."""

    kind: Literal["none"] = "none"


PositionConfig = RopeConfig | AbsoluteConfig | LearnableAbsoluteConfig | RelativeConfig | AlibiConfig | NoPositionConfig


class ModelConfig(Part):
    """Shapes of the decoder. The names are those of the Qwen2.5 family, which is the backbone."""

    layers: PositiveInt = Field(description="transformer layers")
    hidden_size: PositiveInt = Field(description="width of the residual stream")
    heads: PositiveInt = Field(description="query heads")
    head_dim: PositiveInt = Field(description="width of one query or key head")
    ffn_hidden_size: PositiveInt = Field(description="width of the SwiGLU feed-forward layer")
    moe: MoEConfig | None = Field(default=None, description="experts instead of the dense feed-forward layer")
    vocab_size: PositiveInt = Field(description="tokens that the embedding knows; padded for tensor parallelism")
    norm_epsilon: PositiveFloat = Field(default=1e-6, description="epsilon inside RMSNorm's square root")
    init_std: PositiveFloat = Field(
        default=0.02,
        description="standard deviation of initial weights; output projections get init_std / sqrt(2 · layers)",
    )
    attention: GQAConfig | MLAConfig | NSAConfig = Field(
        default=GQAConfig(), discriminator="kind", description="the attention variant and its own shapes"
    )
    position: PositionConfig = Field(default=RopeConfig(), discriminator="kind", description="the positional encoding")

    @property
    def key_value_heads(self) -> int:
        """Heads that keys and values have in the attention kernel."""
        return self.heads if isinstance(self.attention, MLAConfig) else self.attention.query_groups

    @property
    def rotated_dim(self) -> int:
        """Dimensions of a query or key head that RoPE rotates."""
        return self.attention.qk_rope_head_dim if isinstance(self.attention, MLAConfig) else self.head_dim

    @field_validator("attention", mode="before")
    @classmethod
    def _complete_attention(cls, attention: object, info: ValidationInfo) -> object:
        """Attention without a kind is GQA; MLA's widths follow the backbone's."""
        if not isinstance(attention, Mapping):
            return attention
        if attention.get("kind") != "mla":
            return {"kind": "gqa", **attention}
        if not {"hidden_size", "head_dim"} <= info.data.keys():
            # A mistake in these is told; that no widths follow from it need not be.
            raise PydanticUseDefault
        return {**MLAConfig.proportions(info.data["hidden_size"], info.data["head_dim"]), **attention}

    @field_validator("position", mode="before")
    @classmethod
    def _complete_position(cls, position: object) -> object:
        """A positional encoding without a kind is RoPE."""
        return {"kind": "rope", **position} if isinstance(position, Mapping) else position

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"{self.heads} heads cannot be shared evenly by {self.key_value_heads} query groups: "
                "attention.query_groups must divide heads"
            )
        if isinstance(self.attention, MLAConfig) and self.position.kind != "rope":
            raise ValueError(
                f"position.kind: MLA has a part of its keys for RoPE and takes no other encoding, not "
                f"{self.position.kind!r}"
            )
        if self.position.kind == "rope" and self.rotated_dim % 2:
            key = "attention.qk_rope_head_dim" if isinstance(self.attention, MLAConfig) else "head_dim"
            raise ValueError(f"RoPE rotates pairs of dimensions: {key} must be even, not {self.rotated_dim}")
        if self.attention.kind == "nsa" and self.position.kind in ("relative", "alibi"):
            raise ValueError(
                f"NSA's branches take no bias on their scores, as position.kind={self.position.kind} is: set "
                "position.kind to rope, absolute, learnable_absolute or none"
            )
        return self


class ParallelConfig(Part):
    """How the ranks share the work: ranks = tp × cp × pp × dp."""

    tp: PositiveInt = Field(default=1, description="tensor-parallel ranks")
    sp: bool = Field(default=False, description="sequence parallelism: norms and residuals split over the tp ranks")
    cp: PositiveInt = Field(default=1, description="context-parallel ranks, which share each sequence")
    pp: PositiveInt = Field(default=1, description="pipeline stages (1F1B)")
    ep: PositiveInt = Field(default=1, description="ranks, among those of cp × dp, that share a layer's experts")
    vpp: PositiveInt = Field(default=1, description="virtual stages on each pipeline rank; above 1: interleaved 1F1B")
    dp: PositiveInt | None = Field(
        default=None, description="data-parallel replicas; unset: what the devices leave after tp, cp and pp"
    )
    distributed_optimizer: bool = Field(
        default=True, description="shard optimizer states and master weights over cp × dp"
    )

    @property
    def expert_tp(self) -> int:
        """Ranks that split each single expert: those of tp, but only where whole experts are not shared out over ep."""
        return self.tp if self.ep == 1 else 1


class TrainingConfig(Part):
    """Length, batch, precision and optimization."""

    seq_len: PositiveInt = Field(default=2048, description="tokens in a sequence")
    micro_batch_size: PositiveInt = Field(default=1, description="sequences that one rank computes at once")
    global_batch_size: PositiveInt = Field(default=16, description="sequences in an optimizer step, over all ranks")
    tokens: PositiveInt | None = Field(
        default=None,
        description="tokens to train on; unset (and no steps): 100,000, or more where measurement needs it",
    )
    steps: PositiveInt | None = Field(default=None, description="optimizer steps, instead of tokens")
    dtype: Literal["bf16", "fp16", "fp32"] = Field(
        default="bf16", description="dtype of compute; master weights and gradient reduction are float32 in each"
    )
    recompute: Recompute = Field(
        default="none",
        description="activations computed again in the backward pass instead of kept: none; selective: attention "
        "between its projections; full: every layer from its input",
    )
    learning_rate: PositiveFloat = Field(default=1e-4, description="peak of the cosine schedule")
    min_learning_rate: NonNegativeFloat = Field(default=1e-5, description="end of the cosine schedule")
    lr_warmup_fraction: Fraction = Field(
        default=0.1, description="share of the steps over which the learning rate rises"
    )
    weight_decay: NonNegativeFloat = Field(default=0.1, description="AdamW's decay; not on norms and biases")
    beta1: Decay = Field(default=0.9, description="AdamW's decay of the first moment")
    beta2: Decay = Field(default=0.95, description="AdamW's decay of the second moment")
    epsilon: PositiveFloat = Field(default=1e-8, description="AdamW's epsilon")
    gradient_clip: NonNegativeFloat = Field(
        default=1.0, description="largest gradient norm; 0 leaves gradients as they are"
    )
    seed: NonNegativeInt = Field(default=1234, description="seed of weights and data order")
    validation_interval: NonNegativeInt = Field(default=0, description="steps between validations; 0: only at the end")
    validate_every_tokens: NonNegativeInt = Field(
        default=0,
        description="tokens between validations, whatever batch and layout are, after the step that completes them; 0: "
        "none besides those of validation_interval",
    )
    validation_batches: PositiveInt = Field(default=4, description="global batches in a validation")

    @model_validator(mode="after")
    def _learning_rate_falls(self) -> TrainingConfig:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"min_learning_rate {self.min_learning_rate:g} is the schedule's end and must not be above "
                f"learning_rate {self.learning_rate:g}, its peak"
            )
        return self


class DataConfig(Part):
    """Text and tokenizer. Nothing set: the sample text that every Python carries, and a tokenizer trained on it."""

    path: str | tuple[float | str, ...] | None = Field(
        default=None,
        description="text (file, folder or glob), or the prefix of a tokenized pair, or a blend of several, as "
        "[weight,path,weight,path,…]; unset: the embedded sample",
    )
    tokenizer: str | None = Field(
        default=None, description="folder or name that AutoTokenizer loads; unset: one trained on the text"
    )
    trained_vocab_size: PositiveInt = Field(default=4096, description="vocabulary of a tokenizer trained on the text")
    split: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] = Field(
        default=(99, 1, 0), description="parts of the documents for training, validation and test"
    )
    cache: str = Field(default="output/data", description="folder of tokenized text and index caches")

    @property
    def sources(self) -> tuple[str | None, ...]:
        """The path of every source of text; the embedded sample has none."""
        return self.path[1::2] if isinstance(self.path, tuple) else (self.path,)  # type: ignore[return-value]

    @property
    def weights(self) -> tuple[float, ...]:
        """Each source's share of the samples; they sum to 1."""
        given = [float(weight) for weight in self.path[::2]] if isinstance(self.path, tuple) else [1.0]
        return tuple(weight / sum(given) for weight in given)

    @field_validator("path", mode="before")
    @classmethod
    def _blend_alternates(cls, path: object) -> object:
        """A blend names a weight and a path in turn, as Megatron's own scripts write it."""
        if path is None or isinstance(path, str):
            return path
        wanted = "a blend is written [weight,path,weight,path,…], like [0.7,/data/web,0.3,/data/code]"
        if not isinstance(path, list | tuple) or not path or len(path) % 2:
            raise ValueError(f"{reprlib.repr(path)} is neither a path nor weights and paths in turn: {wanted}")
        weights, sources = [_weight(each, wanted) for each in path[::2]], path[1::2]
        for source in sources:
            if not isinstance(source, str) or not source:
                raise ValueError(f"{reprlib.repr(source)} stands where a path should: {wanted}")
            if sources.count(source) > 1:
                raise ValueError(f"{source} is named twice: name it once, with the sum of its weights")
        return tuple(each for pair in zip(weights, sources, strict=True) for each in pair)


def _weight(given: object, wanted: str) -> float:
    try:
        weight = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{reprlib.repr(given)} stands where a weight should: {wanted}") from None
    if not 0 < weight < math.inf:
        raise ValueError(f"the weight {weight:g} is not above 0 and finite: leave out what shall not be read")
    return weight


class MeasurementConfig(Part):
    """What is measured, and when the measured window begins."""

    enabled: bool = Field(default=True, description="run the sensors; off: step times only")
    warmup_steps: NonNegativeInt = Field(default=5, description="steps before the measured window")
    min_steps: PositiveInt = Field(default=10, description="least number of measured steps")
    sample_interval_s: PositiveFloat = Field(default=0.1, description="wanted time between samples, in seconds")
    peak_flops: PositiveFloat | None = Field(
        default=None,
        description="peak FLOP/s of one device for this dtype, dense; unset: from the table of known devices",
    )


class RunConfig(Part):
    """One run, resolved: nothing about it is decided elsewhere."""

    variant: Name = Field(description="name of the variant in the matrix")
    size: Name = Field(description="name of the size in the matrix")
    smoke: bool = Field(default=False, description="scaled down to what a laptop trains in a minute")
    device: str = Field(default="auto", description="device type; auto: the first accelerator found, else the CPU")
    output: str = Field(
        default="output/efficientllm_benchmark", description="folder of the suite that the run belongs to"
    )
    model: ModelConfig
    parallel: ParallelConfig = ParallelConfig()
    training: TrainingConfig = TrainingConfig()
    data: DataConfig = DataConfig()
    measurement: MeasurementConfig = MeasurementConfig()

    @property
    def name(self) -> str:
        """Name of the run and of its output folder: `<variant>_<size>`, with `_smoke` for a smoke run."""
        return f"{self.variant}_{self.size}" + ("_smoke" if self.smoke else "")
