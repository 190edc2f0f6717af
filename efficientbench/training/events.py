"""The events of training, for listeners: monitor, logs and records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from efficientbench.metrics.records.record_parts import Mismatch


@dataclass(frozen=True)
class StepStarted:
    """An optimizer step begins."""

    step: int
    """The step's number, counted from 1."""


@dataclass(frozen=True)
class Routing:
    """The routing of a mixture of experts in one step."""

    auxiliary_loss: float | None
    """Load-balancing loss without its factor, mean over layers and micro-batches: 1 if all experts get equally many
    tokens. None if the run trains without this loss."""
    tokens_per_expert: tuple[tuple[int, ...], ...]
    """[layers with experts][experts], over all ranks; each token counts top-k times."""


@dataclass(frozen=True)
class StepEnded:
    """An optimizer step has ended on this rank; the values are over all ranks."""

    step: int
    loss: float
    """Mean training loss per supervised token, in nats, without auxiliary losses."""
    gradient_norm: float | None
    """Global norm before clipping; None if the step was skipped."""
    learning_rate: float
    tokens: int
    """Tokens computed in the step, over all ranks."""
    supervised_tokens: int
    """Tokens that the loss is a mean over: all tokens of text, or the learned tokens of conversations."""
    skipped: bool
    """Whether the optimizer skipped the update, because gradients overflowed in fp16 or were not finite."""
    non_finite: str | None = None
    """What was not finite, and on which ranks; None if nothing was, apart from overflow in fp16."""
    routing: Routing | None = None
    """The step's routing; None for a model without experts."""


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
    """UTF-8 bytes of the predicted tokens; None if the tokenizer does not know them."""
    text: str
    """SHA-256 of the predicted tokens; equal for validations of the same text."""

    @property
    def tokens(self) -> int:
        """Predicted tokens."""
        return sum(self.document_tokens)


@dataclass(frozen=True)
class RecheckStarted:
    """A recheck begins: a micro-batch of step `step` is computed twice, after that step."""

    step: int


@dataclass(frozen=True)
class RecheckEnded:
    """A recheck has ended."""

    step: int
    mismatches: tuple[Mismatch, ...]
    """Ranks and places where bits differed; empty if none did."""


@dataclass(frozen=True)
class CheckpointStarted:
    """Training pauses after `step` steps to save a checkpoint, or to complete an asynchronous one."""

    step: int


@dataclass(frozen=True)
class CheckpointEnded:
    """Training continues after a checkpoint."""

    step: int
    still_writing: bool
    """Whether a forked process is still writing a checkpoint."""
    bound_s: float | None = None
    """Time of training until the next one at the latest, s; None where no time is set."""


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
