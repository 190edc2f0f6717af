"""The backbone: the decoder around every attention variant and positional encoding, by default Qwen2.5's."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from efficientbench.basics.part import GrownPart, NonNegativeFloat, Part, PositiveFloat, PositiveInt, require

CHOICES = ("norm_weights", "embedding_norm", "qk_norm", "activation", "tied", "logit_softcap")
"""Keys in which published models differ beside their shapes."""

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

NormWeights = Annotated[
    Literal[True, False, "zero_centred"],
    # A command line has text.
    BeforeValidator(lambda given: {"true": True, "false": False}.get(str(given).lower(), given)),
]
"""Whether norms have a trained vector, and whether 1 is added to it."""


class MoEConfig(GrownPart):
    """Mixture of experts instead of every feed-forward layer: dropless, each expert of that layer's shape."""

    later_keys: ClassVar[tuple[str, ...]] = ("scores", "normalized", "scale", "bias_rate", "shared_experts")

    experts: Annotated[int, Field(ge=2)] = Field(default=8, description="number of experts in a layer")
    top_k: PositiveInt = Field(default=2, description="experts that compute a token")
    auxiliary_loss: NonNegativeFloat = Field(
        default=0.01,
        description="factor on each layer's load-balancing loss (arXiv 2101.03961, eq. 4); 0: no such loss; "
        "training.objective=rl has none",
    )
    auxiliary_over: Literal["micro_batch", "sequence", "global"] = Field(
        default="micro_batch",
        description="over what the load-balancing loss asks experts to be balanced; micro_batch: each micro-batch of a "
        "replica, whose size then changes the loss; sequence: each sequence (arXiv 2412.19437, eq. 17); global: the "
        "global batch (arXiv 2501.11873), by the choices of the step before",
    )
    scores: Literal["softmax", "sigmoid"] = Field(
        default="softmax",
        description="the router's, by which experts are chosen; sigmoid: of each by itself (arXiv 2412.19437, eq. 15)",
    )
    normalized: bool = Field(
        default=True,
        description="divide the scores of a token's experts by their sum; false: a softmax's weigh as they are",
    )
    scale: PositiveFloat = Field(default=1.0, description="factor on the weights of a token's experts")
    bias_rate: NonNegativeFloat | None = Field(
        default=None,
        description="step of a bias that balances experts (arXiv 2408.15664), which chooses and does not weigh; for "
        "sigmoids; 0, and in RL: it stays; unset: none",
    )
    shared_experts: PositiveInt | None = Field(
        default=None,
        description="further experts that compute every token (arXiv 2401.06066), as one wider feed-forward layer",
    )

    def balancing(self, objective: str) -> float:
        """Return the factor on the load-balancing loss; 0 in RL, where rewards alone are to train the weights."""
        return 0.0 if objective == "rl" else self.auxiliary_loss

    def step_of_bias(self, objective: str) -> float | None:
        """Return by how much a step moves the bias; 0 in RL, where rewards alone are to train; None without a bias."""
        return 0.0 if objective == "rl" and self.bias_rate is not None else self.bias_rate

    @model_validator(mode="after")
    def _chooses_among_them(self) -> MoEConfig:
        softmax = self.scores == "softmax"
        require(
            (
                self.top_k <= self.experts,
                f"top_k {self.top_k} is more than the {self.experts} experts there are to choose from",
            ),
            (
                softmax or self.normalized,
                "normalized: false is defined for scores=softmax; the weights of scores=sigmoid add up to moe.scale",
            ),
            (
                not softmax or self.bias_rate is None,
                "bias_rate: the bias is added to scores between 0 and 1 of each expert by itself: set "
                "moe.scores=sigmoid, or leave moe.bias_rate out",
            ),
        )
        return self


class Backbone(Part):
    """Shapes and parts of the decoder; the parts' defaults are those of the Qwen2.5 family."""

    layers: PositiveInt = Field(description="number of transformer layers")
    hidden_size: PositiveInt = Field(description="width of the residual stream")
    heads: PositiveInt = Field(description="number of query heads")
    head_dim: PositiveInt = Field(description="width of one query or key head")
    ffn_hidden_size: PositiveInt = Field(description="width of the feed-forward layer")
    moe: MoEConfig | None = Field(default=None, description="experts instead of the dense feed-forward layer")
    vocab_size: PositiveInt = Field(
        description="tokens in the vocabulary; the embedding's rows are padded for tensor parallelism"
    )
    norm_epsilon: PositiveFloat = Field(default=1e-6, description="epsilon inside RMSNorm's square root")
    norm_weights: NormWeights = Field(
        default=True,
        description="whether each RMSNorm multiplies by a trained vector (arXiv 1910.07467); zero_centred: by 1 + one "
        "that begins at 0, as in Qwen3.5",
    )
    embedding_norm: bool = Field(
        default=False, description="RMSNorm before the first layer, on embedding, positions and factor together"
    )
    qk_norm: bool = Field(
        default=False,
        description="RMSNorm on each head's query and key, before they are rotated, as in Qwen3 (arXiv 2505.09388); "
        "heads share its weights; without weights it comes after the rotation, which is the same but for rounding",
    )
    activation: Literal["swiglu", "relu2"] = Field(
        default="swiglu",
        description="of the feed-forward layer or experts; swiglu: silu(gate) · up (arXiv 2002.05202); relu2: "
        "max(up, 0)², without a gate (arXiv 2109.08668)",
    )
    tied: bool = Field(
        default=True, description="whether the output projection is the embedding's table; false: one of its own"
    )
    logit_softcap: PositiveFloat | None = Field(
        default=None, description="bound c on the logits z, which become c · tanh(z / c) (arXiv 2408.00118)"
    )
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

    @property
    def unrouted_networks(self) -> int:
        """Feed-forward networks of a layer that compute every token: its shared experts; 1 without experts."""
        return (self.moe.shared_experts or 0) if self.moe else 1

    @property
    def computing_networks(self) -> int:
        """Feed-forward networks of a layer that compute a token."""
        return self.unrouted_networks + (self.moe.top_k if self.moe else 0)

    @property
    def feed_forward_matrices(self) -> int:
        """Matrices of a feed-forward network, which keeps as many inner tensors for the backward pass.

        SwiGLU has gate, up and down, and keeps gate, up and their product. ReLU² has up and down, and keeps up and its
        square.
        """
        return 3 if self.activation == "swiglu" else 2

    @property
    def feed_forward_parameters(self) -> int:
        """Parameters of one dense feed-forward layer or one expert."""
        return self.feed_forward_matrices * self.hidden_size * self.ffn_hidden_size

    @property
    def router_parameters(self) -> int:
        """Parameters of one layer's router; 0 in a dense model."""
        return self.hidden_size * self.moe.experts if self.moe else 0

    @property
    def head_norm_parameters(self) -> int:
        """Weights of the norms on one layer's queries and keys."""
        return 2 * self.head_dim if self.qk_norm and self.norm_weights else 0

    @property
    def layer_norm_parameters(self) -> int:
        """Weights of one layer's norms, which every tensor-parallel rank holds in full."""
        return 2 * self.hidden_size + self.head_norm_parameters if self.norm_weights else 0

    def outer_norm_parameters(self, first: bool, last: bool) -> int:
        """Count the weights of the norm before the layers (on the first stage) and of the final norm (on the last)."""
        norms = int(first and self.embedding_norm) + int(last)
        return norms * self.hidden_size if self.norm_weights else 0

    def vocabulary_tables(self, first: bool, last: bool) -> int:
        """Count a stage's vocabulary tables: the embedding on the first, the output's on the last; one if tied."""
        return int(first or last) if self.tied else int(first) + int(last)

    @field_validator("embedding_multiplier", mode="before")
    @classmethod
    def _multiplier_of_the_width(cls, multiplier: object, info: ValidationInfo) -> object:
        """Turn the name of √hidden_size into the number."""
        # A missing hidden_size has its own error, which an error here would only repeat.
        return math.sqrt(info.data.get("hidden_size", 1)) if multiplier == "sqrt_hidden_size" else multiplier
