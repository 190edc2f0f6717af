"""The events of training, which monitor, logs and records listen to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from efficientbench.metrics.records.record_parts import Mismatch


@dataclass(frozen=True)
class StepStarted:
    """An optimizer step begins; steps count from 1."""

    step: int


@dataclass(frozen=True)
class Routing:
    """What the routers of a mixture of experts did in one step."""

    auxiliary_loss: float | None
    """Load-balancing loss without its factor, mean over layers and micro-batches: 1 where all experts get equally many
    tokens. None where the run trains without it."""
    tokens_per_expert: tuple[tuple[int, ...], ...]
    """[layers][experts], over all ranks; each token counts top-k times."""


@dataclass(frozen=True)
class StepEnded:
    """An optimizer step has ended on this rank; the values are those of all ranks together."""

    step: int
    loss: float
    """Mean training loss per supervised token, in nats; of the language model alone."""
    gradient_norm: float | None
    """Global norm before clipping; None where the step was skipped."""
    learning_rate: float
    tokens: int
    """Tokens computed in the step, over all ranks."""
    supervised_tokens: int
    """Those of `tokens` that the loss is a mean over: all of text, and of conversations what is learned."""
    skipped: bool
    """Whether the optimizer left the weights as they were, because gradients overflowed in fp16 or were not finite."""
    non_finite: str | None = None
    """What was not finite, and on which ranks; None where everything was, apart from gradients that fp16 overflowed."""
    routing: Routing | None = None
    """None for a model without experts."""


@dataclass(frozen=True)
class ValidationStarted:
    """A validation begins after `step` steps."""

    step: int


@dataclass(frozen=True)
class ValidationEnded:
    """A validation has ended."""

    step: int
    loss: float
    """Mean loss per token, in nats."""
    document_losses: tuple[float, ...]
    """Mean loss per token of each document, in nats."""
    document_tokens: tuple[int, ...]
    """Predicted tokens of each document."""
    utf8_bytes: int | None
    """UTF-8 bytes of the predicted tokens; None where the tokenizer does not know them."""
    text: str
    """SHA-256 of the predicted tokens: two validations with the same one read the same text."""

    @property
    def tokens(self) -> int:
        """Predicted tokens."""
        return sum(self.document_tokens)


@dataclass(frozen=True)
class RecheckStarted:
    """A micro-batch of step `step` is computed twice, after that step."""

    step: int


@dataclass(frozen=True)
class RecheckEnded:
    """A micro-batch has been computed twice."""

    step: int
    mismatches: tuple[Mismatch, ...]
    """Where the bits differed; empty where they did not."""


@dataclass(frozen=True)
class CheckpointStarted:
    """Training pauses after `step` steps to save a checkpoint, or to complete one that was written meanwhile."""

    step: int


@dataclass(frozen=True)
class CheckpointEnded:
    """Training continues after a checkpoint."""

    step: int
    still_writing: bool
    """Whether a process beside the training is writing a checkpoint."""


@dataclass(frozen=True)
class TrainingEnded:
    """The training has ended."""

    steps: int
    stopped: bool
    """Whether the run was asked to stop before its last step."""


Event = (
    StepStarted
    | StepEnded
    | RecheckStarted
    | RecheckEnded
    | ValidationStarted
    | ValidationEnded
    | CheckpointStarted
    | CheckpointEnded
    | TrainingEnded
)
Listener = Callable[[Event], None]
