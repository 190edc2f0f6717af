"""FinetuneConfig: the complete configuration of what a fine-tuning computes and measures."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.part import (
    Fraction,
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
from efficientbench.finetuning.curriculum.config import CurriculumConfig
from efficientbench.finetuning.methods import AdapterConfig, check_method

TINY_SHAPE: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 1024,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    # At this width, initial weights of this size give logits of a usual magnitude.
    "initializer_range": 0.06,
}


TINY = "tiny"
"""The name of the model that is made on the spot."""
SAME = ("output", "cache", "wandb", "prometheus", "faults.", "checkpoint.")
"""Keys, or prefixes of keys, of folders, sinks, limits and checkpoints, which change neither training nor figures."""
SEEDS = ("training.seed", "curriculum.seed")
"""Keys of the seeds of new weights and of the order, in which repeats differ."""


class ExamplesConfig(Part):
    """Examples to learn from; by default from the manual that Python ships."""

    path: str | None = Field(
        default=None,
        description="JSON, JSONL or parquet file, or a dataset of the Hugging Face hub as owner/name; rows are "
        "{instruction, input, output}, {prompt, completion}, {messages} or {conversations}; unset: Python's manual",
    )
    validation: str | None = Field(
        default=None, description="examples that are held out, as `path`; unset: `validation_share` of `path`"
    )
    validation_share: Fraction = Field(
        default=0.05, description="share of the examples that is held out where `validation` is unset"
    )
    validation_seed: NonNegativeInt = Field(default=42, description="of what is held out, the same in all repeats")
    validation_examples: PositiveInt = Field(default=1000, description="most examples that are held out")
    max_length: PositiveInt = Field(default=2048, description="most tokens of an example, prompt included")
    too_long: Literal["error", "drop", "truncate"] = Field(
        default="drop",
        description="what happens to longer examples; truncate cuts the end of the answer, and drops an example "
        "whose prompt leaves no answer",
    )
    unusable: Literal["error", "drop"] = Field(
        default="error",
        description="what happens to rows that cannot be read, that the chat template refuses, or in which names of "
        "special tokens cannot stay text; drop leaves them out and counts them by reason",
    )
    workers: NonNegativeInt = Field(
        default=0, description="processes of each rank that fill up its batches; 0: the rank itself; the order stays"
    )
    pin_memory: bool = Field(default=True, description="whether batches wait in page-locked memory of the host")


class TuningConfig(Part):
    """Length, batch and optimizer."""

    epochs: PositiveFloat = Field(default=3.0, description="how often the examples are read; see `steps`")
    steps: PositiveInt | None = Field(default=None, description="optimizer steps; unset: as many as `epochs` need")
    micro_batch_size: PositiveInt = Field(default=1, description="examples of one forward and backward on a rank")
    global_batch_size: PositiveInt = Field(default=128, description="examples of an optimizer step on all ranks")
    learning_rate: PositiveFloat = Field(default=2e-5, description="largest learning rate; falls by a cosine to 0")
    warmup_steps: NonNegativeInt | None = Field(
        default=None, description="steps in which the rate rises from 0; unset: 100, or a tenth of the steps if fewer"
    )
    weight_decay: NonNegativeFloat = Field(default=0.01, description="of AdamW")
    clip: NonNegativeFloat = Field(default=1.0, description="largest norm of the gradients; 0: any")
    dtype: Literal["fp32", "bf16"] = Field(default="bf16", description="of the weights and the products")
    recompute: bool = Field(
        default=True, description="compute each layer's activations again in the backward pass instead of keeping them"
    )
    seed: NonNegativeInt = Field(default=42, description="of new weights")
    validate_every_steps: NonNegativeInt = Field(
        default=100, description="steps between losses of held-out examples; 0: only before and after the training"
    )
    timeout_s: Seconds = Field(default=1800.0, description="seconds after which a collective that waits ends the run")


_STAGES = ("0", "2", "3")


class ZeroConfig(Part):
    """DeepSpeed's ZeRO: which states of a model are sharded over the ranks."""

    # The value is text if it comes from the command line.
    stage: Annotated[Literal[0, 2, 3], BeforeValidator(lambda given: int(given) if given in _STAGES else given)] = (
        Field(
            default=3,
            description="3: weights, gradients and optimizer states; 2: all but weights; 0: nothing (torch's DDP)",
        )
    )
    offload: Literal["none", "optimizer", "all"] = Field(
        default="none", description="what lies in host memory: optimizer states, or with all the weights as well"
    )
    hpz: PositiveInt = Field(
        default=1, description="ranks, those of a node, that keep a second copy of the weights for the backward pass"
    )
    persistence_threshold: NonNegativeInt | None = Field(
        default=None, description="tensors of fewer numbers stay whole on each rank; unset: 10 × hidden size"
    )

    @model_validator(mode="after")
    def _weights_are_shared_out(self) -> ZeroConfig:
        """Check that offload and hpZ of weights come with stage 3, which shards weights."""
        require(
            (
                self.offload != "all" or self.stage == 3,
                f"offload=all needs stage=3, not {self.stage}: weights stay whole",
            ),
            (self.hpz == 1 or self.stage == 3, f"hpz={self.hpz} needs stage=3, not {self.stage}: weights stay whole"),
        )
        return self


class TuningMeasurementConfig(Part):
    """Sensors, and the window of measured steps."""

    warmup_steps: NonNegativeInt = Field(default=5, description="steps before the measured window")
    meters: Meters = None
    peak_flops: PositiveFloat | None = Field(
        default=None, description="dense peak FLOP/s of one device; unset: as in the table of known devices"
    )


class SavingConfig(Part):
    """Checkpoints to resume from."""

    interval: PositiveInt = Field(default=500, description="steps between checkpoints")
    interval_s: Seconds | None = Field(
        default=None,
        description="seconds between checkpoints, beside interval; each is counted from the one before; unset: 600, or "
        "100 times what a checkpoint holds up training if that is more",
    )
    keep: PositiveInt = Field(default=2, description="newest checkpoints to keep")


class TuningFaultsConfig(Part):
    """Handling of faults."""

    hang_limit_s: Seconds = Field(
        default=600.0,
        description="seconds without progress on any rank after which the run ends as hung; writing a "
        "file of a checkpoint is no progress, so large models on slow disks need more",
    )
    stop_grace_s: Seconds = Field(
        default=60.0,
        description="seconds that the ranks have after SIGTERM or Ctrl-C to end their step, and to save and hash a "
        "checkpoint, before they are killed",
    )


class FinetuneConfig(Part):
    """The complete configuration of one fine-tuning."""

    method: Annotated[str, AfterValidator(check_method)] = Field(
        description="what is trained: a method of finetuning.yaml, package.module:NAME or an installed one's name, "
        "imported because your command names it"
    )
    size: Name = Field(description="name of the size in finetuning.yaml")
    smoke: bool = Field(default=False, description="whether a tiny model stands in for the named one")
    label: Label | None = Field(default=None, description="text that is part of the folder's name")
    device: str = Field(default="auto", description="device type: cuda, npu or cpu; auto: the first that can be used")
    cpu_ranks: PositiveInt = Field(
        default=1, description="ranks on each node where its processors train; an accelerator has one each"
    )
    output: str = Field(default="output/finetuning", description="folder in which the run has its own folder")
    wandb: Label | None = Field(default=None, description="project of Weights & Biases that gets the run; unset: none")
    prometheus: Prometheus = None
    cache: str = Field(default="output/data", description="folder for the tiny model and the scores of examples")
    model: str = Field(
        description="base model: folder, hub id or modelscope:OWNER/NAME; tiny: a small Qwen2 that is made on the spot"
    )
    adapter: AdapterConfig = AdapterConfig()
    data: ExamplesConfig = ExamplesConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    training: TuningConfig = TuningConfig()
    zero: ZeroConfig = ZeroConfig()
    measurement: TuningMeasurementConfig = TuningMeasurementConfig()
    checkpoint: SavingConfig = SavingConfig()
    faults: TuningFaultsConfig = TuningFaultsConfig()

    @property
    def name(self) -> str:
        """The name of the run and its folder: `<method>_<size>[_smoke][__<label>]`."""
        label = f"__{self.label}" if self.label else ""
        return f"{self.method_name}_{self.size}{'_smoke' if self.smoke else ''}{label}"

    @property
    def method_name(self) -> str:
        """The method's name, of `package.module:NAME` the last part: it becomes a part of file names."""
        return self.method.rpartition(":")[2]

    def accumulation(self, world: int) -> int:
        """Return each rank's micro-batches per step with `world` ranks.

        Raises:
            ConfigError: `world` × micro-batch does not divide the global batch, or hpZ does not divide `world`; the
                message names the nearest valid value.
        """
        hpz = self.zero.hpz
        if hpz > world == 1:
            raise ConfigError("zero.hpz: a single rank has nobody to share a second copy with: remove the key")
        if hpz < world and world % hpz:
            near = min((each for each in range(1, world + 1) if world % each == 0), key=lambda each: abs(each - hpz))
            raise ConfigError(f"zero.hpz: groups of {hpz} do not divide {world} ranks; the nearest that do: {near}")
        at_once, batch = self.training.micro_batch_size * world, self.training.global_batch_size
        if batch % at_once:
            near = max(1, round(batch / at_once)) * at_once
            raise ConfigError(
                f"training.global_batch_size: {batch} is no multiple of micro-batch {self.training.micro_batch_size} × "
                f"{world} ranks; the nearest that is: {near}"
            )
        return batch // at_once

    def warmup(self, steps: int) -> int:
        """Return the warm-up steps of the learning rate. Raises ConfigError: the run has no further steps."""
        asked = self.training.warmup_steps
        if asked is not None and asked >= steps:
            raise ConfigError(f"training.warmup_steps: {asked} is not below the {steps} steps of the run")
        return min(100, steps // 10) if asked is None else asked
