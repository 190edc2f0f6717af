"""How long a run trains: optimizer steps from tokens, and whether they suffice for what is measured."""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.config.errors import ConfigError
from efficientbench.config.schema import RunConfig

DEFAULT_TOKENS = 100_000


@dataclass(frozen=True)
class Budget:
    """Length of a run; `extended` is the line to print when the default was too short to measure."""

    steps: int
    warmup_steps: int
    measured_steps: int
    tokens_per_step: int
    extended: str | None = None

    @property
    def tokens(self) -> int:
        """Tokens trained on, warm-up included."""
        return self.steps * self.tokens_per_step


def plan_budget(config: RunConfig) -> Budget:
    """Steps of a run: the least whole number that trains on the wanted tokens.

    Raises ConfigError when both tokens and steps are set, or what is set is less than warm-up and measurement need.
    """
    training, measurement = config.training, config.measurement
    tokens_per_step = training.global_batch_size * training.seq_len
    needed = measurement.warmup_steps + measurement.min_steps
    if training.tokens is not None and training.steps is not None:
        raise ConfigError(
            f"training.tokens: {training.tokens:,} and training.steps {training.steps:,} both set the length; set one"
            " (training.tokens=null or training.steps=null unsets the other)"
        )
    steps = training.steps or -(-(training.tokens or DEFAULT_TOKENS) // tokens_per_step)
    extended = None
    if steps < needed:
        if training.tokens is not None or training.steps is not None:
            raise ConfigError(_too_short(config, steps, needed, tokens_per_step))
        extended = (
            f"the default of {DEFAULT_TOKENS:,} tokens is {steps} steps of {tokens_per_step:,}; extended to {needed} "
            f"steps ({needed * tokens_per_step:,} tokens), for {measurement.warmup_steps} steps of warm-up and "
            f"{measurement.min_steps} measured steps"
        )
        steps = needed
    return Budget(steps, measurement.warmup_steps, steps - measurement.warmup_steps, tokens_per_step, extended)


def _too_short(config: RunConfig, steps: int, needed: int, tokens_per_step: int) -> str:
    training, measurement = config.training, config.measurement
    if training.steps is not None:
        what, right = f"training.steps: {steps:,} of", f"training.steps={needed}"
    else:
        what = f"training.tokens: {training.tokens:,} tokens at {tokens_per_step:,} a step are {steps:,} of"
        right = f"training.tokens={needed * tokens_per_step}"
    return (
        f"{what} the {needed} steps that {measurement.warmup_steps} of warm-up and {measurement.min_steps} measured "
        f"ones need: set {right}, or lower measurement.warmup_steps or measurement.min_steps"
    )
