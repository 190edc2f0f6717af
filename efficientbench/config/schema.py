"""RunConfig and its parts: everything that decides what a run computes and measures.

Every part is frozen and refuses unknown keys. Each field's description has its meaning and its unit.
"""

from __future__ import annotations

import math
import reprlib
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from efficientbench.architecture.model import ModelConfig
from efficientbench.basics.part import (
    GrownPart,
    Label,
    Meters,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    Part,
    PositiveFloat,
    PositiveInt,
    Prometheus,
    Seconds,
    require,
)
from efficientbench.config.init import InitConfig
from efficientbench.config.parallel import ParallelConfig
from efficientbench.config.reinforcement import ReinforcementConfig
from efficientbench.config.training import TrainingConfig


class EvaluationConfig(Part):
    """Evaluation while the model is trained."""

    core_every: NonNegativeInt = Field(default=0, description="steps between evaluations of CORE; 0: none")
    core_data: str | None = Field(
        default=None, description="folder of CORE's evaluation bundle, or one that holds it as core/"
    )
    core_limit: PositiveInt = Field(
        default=100, description="rows of each task, at most; more than a task's shots, of which 10 are the most"
    )

    @model_validator(mode="after")
    def _has_data(self) -> EvaluationConfig:
        if self.core_every and self.core_data is None:
            raise ValueError("evaluation.core_data: missing: the folder of the bundle that core_every evaluates")
        return self


class KernelsConfig(Part):
    """Choice among kernels that compute the same numbers; the defaults are the fastest."""

    attention: Literal["auto", "flash", "cudnn", "efficient", "flex", "te", "math"] = Field(
        default="auto",
        description="causal attention without a bias: flash, cudnn, efficient or math of torch's "
        "scaled_dot_product_attention, flex (FlexAttention), te (Transformer Engine); auto: the fastest by a "
        "measurement before the first step on NVIDIA GPUs, elsewhere the device's own",
    )
    fused: bool | None = Field(
        default=None,
        description="compile norm, rotation, activation, loss and NSA's gates by torch.compile, each into one kernel "
        "or a few; unset: true where Triton supports the device",
    )
    loss_block_logits: PositiveInt | None = Field(
        default=None,
        description="logits that the loss computes at once; unset: 2^24, or 2^28 where it is fused",
    )

    @property
    def loss_block(self) -> int:
        """Logits in one block of the loss."""
        if self.loss_block_logits is not None:
            return self.loss_block_logits
        return 2**28 if self.fused else 2**24


class DataConfig(Part):
    """Text and tokenizer; by default a sample text from Python's own files, and a tokenizer trained on it."""

    path: str | tuple[float | str, ...] | None = Field(
        default=None,
        description="text (file, folder or glob), the prefix of a tokenized .bin/.idx pair, or a blend of several as "
        "[weight,path,weight,path,…]; unset: the sample text",
    )
    tokenizer: str | None = Field(
        default=None,
        description="folder or name from which AutoTokenizer loads a tokenizer; unset: train one on the text",
    )
    trained_vocab_size: PositiveInt = Field(
        default=4096, description="tokens in the vocabulary of a tokenizer trained on the text"
    )
    split: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] = Field(
        default=(99, 1, 0), description="relative numbers of documents for training, validation and test"
    )
    seed: NonNegativeInt | None = Field(
        default=None, le=2**32 - 1, description="seed of the order of the training text; unset: training.seed"
    )
    order_tokens: PositiveInt | None = Field(
        default=None,
        description="tokens for which the order of the training text is drawn, since text that repeats is shuffled "
        "over all its epochs; unset: the run's, or with init.state=everything those of the run that it continues",
    )
    attention_within_documents: bool = Field(
        default=False,
        description="end attention and positions at the ends of documents, which share sequences; false: a token "
        "attends to all tokens before it in its sequence",
    )
    cache: str = Field(default="output/data", description="folder for tokenized text, index caches and kernels' times")

    @property
    def sources(self) -> tuple[str | None, ...]:
        """The path of every source of text; None for the sample text."""
        return self.path[1::2] if isinstance(self.path, tuple) else (self.path,)  # type: ignore[return-value]

    @property
    def weights(self) -> tuple[float, ...]:
        """Each source's share of the samples; the shares sum to 1."""
        weights = [float(weight) for weight in self.path[::2]] if isinstance(self.path, tuple) else [1.0]
        return tuple(weight / sum(weights) for weight in weights)

    @field_validator("path", mode="before")
    @classmethod
    def _blend_alternates(cls, path: object) -> object:
        """Parse a blend: weights and paths in turn, as in Megatron's scripts."""
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
    """Sensors, and the window of measured steps."""

    enabled: bool = Field(default=True, description="run the sensors; false: measure step times only")
    warmup_steps: NonNegativeInt = Field(default=5, description="steps before the measured window")
    min_steps: PositiveInt = Field(
        default=50,
        description="fewest steps in the measured window; where set, those of a run of no set length, too; below 30 a "
        "step's time has no interval",
    )
    sample_interval_s: Seconds = Field(default=0.1, description="wanted seconds between samples of the sensors")
    meters: Meters = None
    peak_flops: PositiveFloat | None = Field(
        default=None,
        description="dense peak FLOP/s of one device in training.dtype; unset: as in the table of known devices",
    )
    profile_steps: NonNegativeInt = Field(
        default=0, description="steps at the end that torch's profiler traces on rank 0, which slows them; 0: none"
    )

    @model_validator(mode="after")
    def _meters_are_read(self) -> MeasurementConfig:
        """Refuse meters that nobody would read."""
        require((self.enabled or not self.meters, "enabled=false reads no sensor, and meters names some"))
        return self


class FaultsConfig(GrownPart):
    """Handling of faults."""

    later_keys: ClassVar[tuple[str, ...]] = ("preflight_s",)

    skip_non_finite_steps: NonNegativeInt = Field(
        default=0,
        description="steps with non-finite loss or gradients that a run may skip, leaving weights and moments as they "
        "are; the next such step ends the run; overflowing fp16 gradients do not count",
    )
    hang_limit_s: Seconds = Field(
        default=600.0,
        description="seconds without progress on any rank after which the run ends as hung; writing a "
        "checkpoint is no progress, so a slow disk needs more than checkpoint.time_limit_s",
    )
    stop_grace_s: Seconds = Field(
        default=60.0,
        description="seconds that the ranks have after SIGTERM or Ctrl-C to end their step and save, before they are "
        "killed",
    )
    preflight_s: Annotated[float, Field(ge=0, le=3600)] = Field(
        default=30.0,
        description="seconds before the first step of a run on several nodes in which each device and link is measured "
        "and compared with the others; 0: none",
    )


class CheckpointConfig(Part):
    """Checkpoints. A stop signal and the end of a run save one in any case."""

    interval: NonNegativeInt = Field(
        default=1000, description="steps between checkpoints; 0: only at a stop, at the end, and by interval_s"
    )
    interval_s: Seconds | None = Field(
        default=None,
        description="seconds between checkpoints, beside interval; each is counted from the one before, and none falls "
        "due in an attempt's warm-up and first measurement.min_steps; unset: 600, or 100 times what a checkpoint holds "
        "up training if that is more, and none with interval=0",
    )
    keep: PositiveInt = Field(default=2, description="newest checkpoints to keep")
    at_tokens: tuple[PositiveInt, ...] | None = Field(
        default=None,
        description="numbers of tokens; the last step within each is followed by a checkpoint of all state, which "
        "stays beside the newest ones, for branches (init.state=everything)",
    )
    asynchronous: bool = Field(
        default=False,
        description="write in a forked process while training continues; takes another copy in host memory",
    )
    time_limit_s: Seconds = Field(
        default=600.0,
        description="seconds that a rank may take to write its part; after them the run ends and names the rank",
    )


class RunConfig(Part):
    """The complete configuration of one run."""

    variant: Name = Field(description="name of the variant in the matrix")
    size: Name = Field(description="name of the size in the matrix")
    smoke: bool = Field(default=False, description="whether the run is scaled down to what a laptop trains in a minute")
    label: Label | None = Field(
        default=None,
        description="text that distinguishes the run from others of its name in the suite; part of its folder's name",
    )
    device: str = Field(
        default="auto",
        description="device type: cuda, npu or cpu; auto: the first accelerator that can be used, else the CPU",
    )
    output: str = Field(
        default="output/efficientllm_benchmark", description="folder of the suite, in which the run has its own folder"
    )
    match: Literal["flops", "parameters", "active", "cache"] | None = Field(
        default=None,
        description="figure in which the model is to equal match_to's: training FLOPs per token, parameters or active "
        "parameters, by the width of its feed-forward layer or experts; or cache bytes per token, by its attention's "
        "groups or latent; unset: no figure",
    )
    match_to: Name | None = Field(
        default=None, description="run, or variant in the run's own size, whose figure match is to equal, like gqa"
    )
    match_left: float | None = Field(
        default=None, description="what match leaves, which sets it: the model's figure over match_to's, minus 1"
    )
    wandb: Label | None = Field(default=None, description="project of Weights & Biases that gets the run; unset: none")
    prometheus: Prometheus = None
    model: ModelConfig
    kernels: KernelsConfig = KernelsConfig()
    parallel: ParallelConfig = ParallelConfig()
    training: TrainingConfig = TrainingConfig()
    data: DataConfig = DataConfig()
    init: InitConfig = InitConfig()
    measurement: MeasurementConfig = MeasurementConfig()
    faults: FaultsConfig = FaultsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    rl: ReinforcementConfig = ReinforcementConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def order_seed(self) -> int:
        """The seed of the order in which the training reads its text, conversations or questions."""
        return self.training.seed if self.data.seed is None else self.data.seed

    @property
    def stage_views(self) -> list[tuple[RunConfig, int]]:
        """The run with the view of each kind of layer, and the number of such layers on one pipeline rank.

        Ranks have equally many layers of each kind (config/layout.py).
        """
        return [(self.with_view(view), count // self.parallel.pp) for view, count in self.model.counted_views]

    def with_view(self, view: ModelConfig) -> RunConfig:
        """Return the run as if all layers were of a kind."""
        return self if view is self.model else self.model_copy(update={"model": view})

    def order_samples(self, steps: int) -> int:
        """Return the samples for which the order of the training text is drawn; `steps`: those of the run."""
        own, tokens = steps * self.training.global_batch_size, self.data.order_tokens
        return own if tokens is None else tokens // self.training.seq_len

    @model_validator(mode="after")
    def _continues_text(self) -> RunConfig:
        if self.training.objective != "pretrain" and (self.init.branches or self.data.order_tokens):
            key = "init.state: everything" if self.init.branches else "data.order_tokens"
            raise ValueError(f"{key} is for training.objective=pretrain alone, not for {self.training.objective}")
        return self

    @model_validator(mode="after")
    def _matches_a_row(self) -> RunConfig:
        if self.match is not None and self.match_to is None:
            raise ValueError(f"match_to: name the run or the variant that match={self.match} is to equal, like gqa")
        # A null that someone wrote is an answer, as on an axis.
        if self.match_to is not None and "match" not in self.model_fields_set:
            raise ValueError(
                f"match: name the figure in which the run is to equal {self.match_to}: match=flops, parameters, active "
                "or cache"
            )
        return self

    @model_validator(mode="after")
    def _generates_while_training(self) -> RunConfig:
        parallel = self.parallel
        if self.evaluation.core_every and (parallel.sp or max(parallel.cp, parallel.pp, parallel.ep) > 1):
            raise ValueError(
                "evaluation.core_every: ranks of sp, cp, pp and ep do not score prompts; evaluate the checkpoints "
                "afterwards, by `efficientbench evaluate`"
            )
        self.rl.check(self.training, parallel)
        return self

    @model_validator(mode="after")
    def _optimizer_serves(self) -> RunConfig:
        training = self.training
        muon = training.optimizer == "muon"
        if muon and self.parallel.distributed_optimizer:
            raise ValueError(
                "parallel.distributed_optimizer: training.optimizer=muon updates whole matrices, and the distributed "
                "optimizer gives ranks parts of them: leave it unset or set it to false"
            )
        for view in self.model.views.values():
            if muon and view.attention_variant.matrices is None:
                raise ValueError(
                    f"training.optimizer: attention {view.attention.kind!r} does not declare its matrices "
                    "(AttentionVariant.matrices), which muon updates one by one: set training.optimizer=adamw"
                )
        if training.head_learning_rate is not None and self.model.tied:
            raise ValueError(
                "training.head_learning_rate: the output projection is the embedding (model.tied=true): set "
                "training.embedding_learning_rate"
            )
        return self

    @model_validator(mode="after")
    def _kernel_serves(self) -> RunConfig:
        asked, model = self.kernels.attention, self.model
        if asked == "auto":
            return self
        views = model.views.values()
        biased = model.own_view.position_variant.place == "scores"
        own = " and ".join(repr(kind) for kind in dict.fromkeys(view.attention.kind for view in views))
        # One kind of layer with plain causal attention is work enough for the kernel.
        plain = any(view.plain_scores is not None for view in views)
        kernels = f"attention {own} has kernels of its own"
        if all(view.attention_variant.plain_scores for view in views):
            kernels = "layers with a window or sinks (model.attention.window, sinks) have a kernel of their own"
        reason = None if plain else kernels
        reason = f"{model.position.kind!r} positions put a bias on the scores" if biased else reason
        within = self.data.attention_within_documents and asked == "flex"
        reason = "data.attention_within_documents would compile it for each document's length" if within else reason
        reason = "context-parallel ranks attend to parts of a sequence" if self.parallel.cp > 1 else reason
        if reason is not None:
            raise ValueError(
                f"kernels.attention: {asked!r} computes plain causal attention, and {reason}: leave it auto"
            )
        return self

    @property
    def name(self) -> str:
        """Name of the run and of its output folder: `<variant>_<size>[_smoke][__<label>]`."""
        label = f"__{self.label}" if self.label else ""
        return f"{self.variant}_{self.size}{'_smoke' if self.smoke else ''}{label}"
