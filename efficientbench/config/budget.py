"""The length of a run: optimizer steps from tokens, and whether they suffice for measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import ConfigError
from efficientbench.config.schema import RunConfig
from efficientbench.config.training import LENGTHS

DEFAULT_TOKENS = 100_000
"""Training tokens of a run that sets no length, at least."""
MEASURED_STEPS = 400
"""Steps that such a run measures: from so many on, the interval of a step's time needs no reserve."""
MEASURED_S = 600.0
"""Time of measured steps, s, after which such a run ends earlier, once it has `measurement.min_steps`."""


@dataclass(frozen=True)
class Budget:
    """Length of a run."""

    steps: int
    """Optimizer steps, with the warm-up."""
    warmup_steps: int
    """Steps before the measured window."""
    tokens_per_step: int
    """Tokens of a global batch."""
    parameters: int | None
    """All parameters of the model; None where they are unknown before it is built."""
    extended: str | None = None
    """Message for the user where the default length was too short to measure, or may be cut short by time."""
    counted: bool = True
    """Whether `steps` is known; False: the epochs' text is not known yet, and `steps` is the fewest to measure."""
    time_limit_s: float | None = None
    """Time of measured steps, s, after which the run ends before `steps`; None: it trains them all."""

    @property
    def tokens(self) -> int:
        """Tokens to train on, with the warm-up."""
        return self.steps * self.tokens_per_step

    @property
    def tokens_per_parameter(self) -> float | None:
        return self.tokens / self.parameters if self.parameters and self.counted else None


def plan_budget(config: RunConfig, parameters: int | None, epoch_steps: int | None = None) -> Budget:
    """Return the length of a run: the fewest steps that train on the wanted tokens.

    Args:
        config: the run's configuration.
        parameters: all parameters of its model, the unit of tokens like `20x`; None: they are unknown.
        epoch_steps: steps that read the text `training.epochs` times; None: the text is not known yet.

    Raises ConfigError: two keys set the length, or it is less than warm-up and measurement need, or tokens are counted
    by unknown parameters.
    """
    training, measurement = config.training, config.measurement
    tokens_per_step = training.global_batch_size * training.seq_len
    needed = measurement.warmup_steps + measurement.min_steps
    given = [key for key in LENGTHS if getattr(training, key) is not None]
    if len(given) > 1:
        (first, second), values = given[:2], [_text(getattr(training, key)) for key in given]
        raise ConfigError(
            f"training.{first}: {values[0]} and training.{second} {values[1]} both set the length; set one "
            f"(training.{first}=null or training.{second}=null unsets the other)"
        )
    if training.epochs is not None and epoch_steps is None:
        return Budget(needed, measurement.warmup_steps, tokens_per_step, parameters, counted=False)
    tokens = wanted_tokens(training.tokens or DEFAULT_TOKENS, parameters)
    steps = training.steps or epoch_steps or -(-tokens // tokens_per_step)
    extended = time_limit_s = None
    measured = measurement.min_steps
    if not given and _may_end_by_time(config):
        measured, time_limit_s = MEASURED_STEPS, MEASURED_S
        needed = measurement.warmup_steps + measured
    if steps < needed:
        if given:
            raise ConfigError(_too_short(config, tokens, steps, needed, tokens_per_step))
        extended = (
            f"the default of {DEFAULT_TOKENS:,} tokens is {steps} steps of {tokens_per_step:,}; extended to {needed} "
            f"steps ({needed * tokens_per_step:,} tokens), for {measurement.warmup_steps} steps of warm-up and "
            f"{measured} measured steps"
        )
        steps = needed
    if time_limit_s is not None:
        extended = (
            f"{extended or f'no length is set: {steps} steps'}; those that {time_limit_s / 60:g} minutes hold, and "
            f"{measurement.min_steps} at least, are measured (training.steps=N sets a length)"
        )
    _check_tokens(config, steps, tokens_per_step)
    return Budget(steps, measurement.warmup_steps, tokens_per_step, parameters, extended, time_limit_s=time_limit_s)


def _may_end_by_time(config: RunConfig) -> bool:
    """Return whether the time of steps may decide how long a run is that sets no length.

    Not where the user has said how many steps to measure, or the last ones are traced, or every run trains the same, or
    checkpoints at tokens are wanted, or the run continues another one.
    """
    training, measurement = config.training, config.measurement
    counted = "min_steps" in measurement.model_fields_set or measurement.profile_steps
    awaited = config.checkpoint.at_tokens or config.init.branches
    return not (counted or awaited or training.deterministic or training.objective != "pretrain")


def steps_at_tokens(config: RunConfig) -> dict[int, int]:
    """Return each number of `checkpoint.at_tokens` → the last step within it."""
    tokens_per_step = config.training.global_batch_size * config.training.seq_len
    return {tokens: tokens // tokens_per_step for tokens in config.checkpoint.at_tokens or ()}


def _check_tokens(config: RunConfig, steps: int, tokens_per_step: int) -> None:
    """Raise a ConfigError if a number of tokens in the configuration does not fit a run of `steps` steps."""
    training, order, tokens = config.training, config.data.order_tokens, steps * tokens_per_step
    for each, step in steps_at_tokens(config).items():
        if not 0 < step < steps:
            raise ConfigError(
                f"checkpoint.at_tokens: {each:,} is not within the run, whose first step ends at {tokens_per_step:,} "
                f"tokens and whose last but one at {tokens - tokens_per_step:,}"
            )
    if order is not None and order < tokens:
        raise ConfigError(
            f"data.order_tokens: {order:,} are fewer than the run's {tokens:,} tokens, which it orders; a branch "
            "is no longer than its trunk"
        )
    falls = math.floor(training.wsd_decay_fraction * steps) if training.lr_schedule == "trapezoid" else 0
    if training.lr_warmup_tokens is not None and (rises := training.rise_steps(steps)) + falls > steps:
        raise ConfigError(
            f"training.lr_warmup_tokens: {training.lr_warmup_tokens:,} are {number_of(rises, 'step')}, and the rate "
            f"falls over {falls:,}: more than the run's {steps:,}"
        )


def wanted_tokens(tokens: int | str, parameters: int | None) -> int:
    """Return `training.tokens` as a number of tokens. Raises ConfigError: it is counted by unknown parameters."""
    if isinstance(tokens, int):
        return tokens
    if parameters is None:
        raise ConfigError(
            f"training.tokens: {tokens} is counted by the model's parameters, for which a variant of it declares no "
            "formula: give a number of tokens, or training.steps"
        )
    return math.ceil(float(tokens.removesuffix("x")) * parameters)


def _text(length: int | str) -> str:
    return f"{length:,}" if isinstance(length, int) else length


def _too_short(config: RunConfig, tokens: int, steps: int, needed: int, tokens_per_step: int) -> str:
    training, measurement = config.training, config.measurement
    if training.steps is not None:
        what, right = f"training.steps: {steps:,} of", f"training.steps={needed}"
    elif training.epochs is not None:
        are = "is" if training.epochs == 1 else "are"
        what, right = f"training.epochs: {training.epochs:,} {are} {steps:,} of", f"training.steps={needed}"
    else:
        counted = number_of(tokens, "token")
        by_parameters = f"{training.tokens} is " if isinstance(training.tokens, str) else ""
        what = f"training.tokens: {by_parameters}{counted} at {tokens_per_step:,} a step: {steps:,} of"
        right = f"training.tokens={needed * tokens_per_step}"
    return (
        f"{what} the {needed} steps that {measurement.warmup_steps} of warm-up and {measurement.min_steps} measured "
        f"ones need: set {right}, or lower measurement.warmup_steps or measurement.min_steps"
    )
