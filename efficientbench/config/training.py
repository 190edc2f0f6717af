"""Length, batch, precision and optimization of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from efficientbench.basics.part import (
    Fraction,
    MicroBatch,
    NonNegativeFloat,
    NonNegativeInt,
    Part,
    PositiveFloat,
    PositiveInt,
    Tokens,
)

Recompute = Literal["none", "selective", "full"]
Decay = Annotated[float, Field(ge=0, lt=1)]
LENGTHS = ("tokens", "steps", "epochs")
"""Alternative keys for the length of a run."""
BATCHES = ("global_batch_size", "global_batch_tokens")
"""Alternative keys for the global batch."""
RISES = ("lr_warmup_fraction", "lr_warmup_tokens")
"""Alternative keys for the rise of the learning rate."""
MUON_RATE = 0.02
"""Muon's default learning rate, its author's and nanochat's."""


class TrainingConfig(Part):
    """Length, batch, precision and optimization."""

    seq_len: PositiveInt = Field(default=2048, description="tokens in a sequence")
    objective: Literal["pretrain", "sft", "rl"] = Field(
        default="pretrain",
        description="what is learned; pretrain: every token; sft: what the mask of conversations marks; rl: answers of "
        "its own that are worth more than others (the keys rl.…)",
    )
    micro_batch_size: MicroBatch = Field(
        default=1,
        description="sequences that one rank computes at once; auto: the most that fit, up to 16,384 tokens, found by "
        "plan and by trying, once for all runs of a suite",
    )
    micro_batch_size_asked: PositiveInt | None = Field(
        default=None,
        description="micro_batch_size before a sweep made it smaller, after running out of memory; it changes nothing",
    )
    global_batch_size: PositiveInt = Field(default=16, description="sequences in an optimizer step, over all ranks")
    global_batch_tokens: PositiveInt | None = Field(
        default=None, description="tokens in an optimizer step, of whole sequences; instead of global_batch_size"
    )
    tokens: Tokens = Field(
        default=None,
        description="tokens to train on; 20x: 20 for each parameter of the model (all of them, also a mixture's idle "
        "experts); unset, and steps too: 100,000 and 400 measured steps at least, or as many as 10 minutes "
        "hold from measurement.min_steps on",
    )
    steps: PositiveInt | None = Field(default=None, description="optimizer steps; set one of these three")
    epochs: PositiveInt | None = Field(default=None, description="how often the training text is read")
    dtype: Literal["bf16", "fp16", "fp32"] = Field(
        default="bf16", description="compute dtype; master weights and gradient reduction are float32 in any case"
    )
    recompute: Recompute = Field(
        default="none",
        description="activations that the backward pass computes again instead of keeping them; none; selective: "
        "attention between its projections; full: every layer from its input",
    )
    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw",
        description="what updates the matrices of the layers; adamw; muon: the momentum of each whole matrix made "
        "orthogonal, which needs parallel.distributed_optimizer=false and sets it; AdamW updates all else either way",
    )
    learning_rate: PositiveFloat = Field(default=1e-4, description="learning rate at the peak of the schedule")
    matrix_learning_rate: PositiveFloat | None = Field(
        default=None,
        description="learning rate of the layers' matrices at the peak; unset: learning_rate, with optimizer=muon 0.02",
    )
    embedding_learning_rate: PositiveFloat | None = Field(
        default=None, description="learning rate of the embedding at the peak; unset: learning_rate"
    )
    head_learning_rate: PositiveFloat | None = Field(
        default=None,
        description="learning rate of an output projection with a table of its own, at the peak; unset: learning_rate",
    )
    min_learning_rate: NonNegativeFloat = Field(default=1e-5, description="learning rate of the last step")
    lr_scale: PositiveFloat = Field(
        default=1.0,
        description="factor on the learning rate of every step, for runs that continue others",
    )
    lr_schedule: Literal["cosine", "linear", "trapezoid"] = Field(
        default="cosine",
        description="how the learning rate falls after its rise; cosine: along half a cosine; linear: along a line; "
        "wsd (warmup, stable, decay), recorded as trapezoid: it stays at its peak, then falls along a line",
    )
    lr_warmup_fraction: Fraction | None = Field(
        default=0.1, description="share of the steps over which the learning rate rises"
    )
    lr_warmup_tokens: NonNegativeInt | None = Field(
        default=None,
        description="tokens over which the learning rate rises, to whole steps, whatever the run's length; instead of "
        "lr_warmup_fraction",
    )
    lr_decay_fraction: Fraction | None = Field(
        default=None,
        description="share of the steps, the last ones, over which lr_schedule=wsd falls; unset: 0.2",
    )
    weight_decay: NonNegativeFloat = Field(
        default=0.1,
        description="weight decay, on the matrices of linear layers, router and embedding, times their learning rate; "
        "norms, biases and tables of positions do not decay",
    )
    beta1: Decay = Field(default=0.9, description="AdamW's decay of the first moment")
    beta2: Decay = Field(default=0.95, description="AdamW's decay of the second moment")
    epsilon: PositiveFloat = Field(default=1e-8, description="AdamW's epsilon")
    gradient_clip: NonNegativeFloat = Field(
        default=1.0, description="largest norm of the gradients, which are scaled down to it; 0: no clipping"
    )
    seed: NonNegativeInt = Field(
        default=1234,
        le=2**32 - 1,
        description="seed of weights and samples, and of the data order unless data.seed is set",
    )
    draw_weights_on: Literal["device", "cpu"] = Field(
        default="device",
        description="where initial weights are drawn; device: in a moment by a GPU, the same in every layout "
        "of GPUs of one model; cpu: by a core, the same on every device type",
    )
    validation_interval: NonNegativeInt = Field(
        default=0, description="steps between validations; 0: only one at the end"
    )
    validate_every_tokens: NonNegativeInt = Field(
        default=0,
        description="tokens between validations, for any batch and layout; each follows the step that completes them; "
        "0: only the validations of validation_interval",
    )
    validation_tokens: PositiveInt = Field(
        default=65_536,
        description="tokens that a validation predicts, the same ones for every sequence length, batch and layout; all "
        "of the validation text where that has fewer",
    )
    deterministic: bool = Field(
        default=False,
        description="compute the same bits in every run on the same devices and layout, by slower kernels; "
        "where a library cannot, the run says so",
    )
    recheck_every: NonNegativeInt = Field(
        default=0,
        description="steps after which every rank computes a micro-batch twice, outside the measured time, and "
        "compares loss and gradients bit for bit; needs deterministic; 0: never",
    )

    @property
    def matrix_rate(self) -> float:
        """Learning rate of the layers' matrices at the peak of the schedule."""
        unset = MUON_RATE if self.optimizer == "muon" else self.learning_rate
        return unset if self.matrix_learning_rate is None else self.matrix_learning_rate

    @property
    def embedding_rate(self) -> float:
        """Learning rate of the embedding at the peak of the schedule."""
        return self.learning_rate if self.embedding_learning_rate is None else self.embedding_learning_rate

    @property
    def head_rate(self) -> float:
        """Learning rate of an output projection with a table of its own, at the peak of the schedule."""
        return self.learning_rate if self.head_learning_rate is None else self.head_learning_rate

    @property
    def wsd_decay_fraction(self) -> float:
        """Share of the steps over which the WSD schedule falls."""
        return 0.2 if self.lr_decay_fraction is None else self.lr_decay_fraction

    def rise_steps(self, steps: int) -> int:
        """Return the steps over which the learning rate of a run of `steps` steps rises."""
        if self.lr_warmup_tokens is not None:
            return round(self.lr_warmup_tokens / (self.global_batch_size * self.seq_len))
        return round((self.lr_warmup_fraction or 0) * steps)

    def fall_steps(self, steps: int) -> int:
        """Return the last steps of a run of `steps` steps over which the WSD schedule falls."""
        # Both shares may round up; the rise then has precedence.
        return min(round(self.wsd_decay_fraction * steps), steps - self.rise_steps(steps))

    @field_validator("lr_schedule", mode="before")
    @classmethod
    def _by_its_older_name(cls, given: object) -> object:
        """Return `trapezoid` for `wsd`: configurations, records and checkpoints have the WSD schedule by that name."""
        return "trapezoid" if given == "wsd" else given

    @model_validator(mode="before")
    @classmethod
    def _batch_of_tokens(cls, given: object) -> object:
        """Set global_batch_size from global_batch_tokens, where that is set."""
        if not isinstance(given, dict) or given.get("global_batch_tokens") is None:
            return given
        size = given.get("global_batch_size")
        if size is None:
            # A layer that sets the other key leaves this one empty.
            given = {key: value for key, value in given.items() if key != "global_batch_size"}
        try:
            tokens = int(given["global_batch_tokens"])
            length = int(given.get("seq_len", cls.model_fields["seq_len"].default))
            size = None if size is None else int(size)
        except (TypeError, ValueError, OverflowError):
            # The fields' own checks say what is wrong.
            return given
        if length < 1 or tokens < 1:
            return given
        sequences = tokens // length
        if tokens % length:
            near = max(sequences, 1) * length
            raise ValueError(
                f"global_batch_tokens {tokens:,} is no whole number of sequences of {length:,} tokens: {near:,} is"
            )
        if size not in (None, sequences):
            raise ValueError(
                f"global_batch_tokens {tokens:,} is {sequences:,} sequences, and global_batch_size {size:,}: set one "
                "of them"
            )
        return {**given, "global_batch_size": sequences}

    @model_validator(mode="before")
    @classmethod
    def _rise_of_tokens(cls, given: object) -> object:
        """Unset lr_warmup_fraction where lr_warmup_tokens is set; else null is its default."""
        if not isinstance(given, dict):
            return given
        share = given.get("lr_warmup_fraction")
        if given.get("lr_warmup_tokens") is None:
            return {key: value for key, value in given.items() if key != "lr_warmup_fraction" or share is not None}
        if share is not None:
            raise ValueError("lr_warmup_tokens and lr_warmup_fraction both set the rise: set one of them")
        return {**given, "lr_warmup_fraction": None}

    @model_validator(mode="after")
    def _schedule_fits(self) -> TrainingConfig:
        if self.lr_decay_fraction is not None and self.lr_schedule != "trapezoid":
            raise ValueError(
                f"lr_decay_fraction {self.lr_decay_fraction:g} is for lr_schedule=wsd alone: {self.lr_schedule} "
                "falls from the end of its rise on"
            )
        decay_fraction = self.wsd_decay_fraction
        warmup_fraction = self.lr_warmup_fraction or 0
        if self.lr_schedule == "trapezoid" and warmup_fraction + decay_fraction > 1:
            raise ValueError(
                f"lr_warmup_fraction {warmup_fraction:g} and lr_decay_fraction {decay_fraction:g} are more "
                "than all steps together: their sum must not be above 1"
            )
        return self

    @model_validator(mode="after")
    def _rechecks_compare_bits(self) -> TrainingConfig:
        if self.recheck_every and not self.deterministic:
            raise ValueError(
                "recheck_every needs training.deterministic=true: other kernels may give other bits each time"
            )
        return self

    @model_validator(mode="after")
    def _learning_rate_falls(self) -> TrainingConfig:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"min_learning_rate {self.min_learning_rate:g} is the schedule's end and must not be above "
                f"learning_rate {self.learning_rate:g}, its peak"
            )
        return self
