"""Advantages, and micro-batches whose weighted loss has the gradient of the policy.

The loss of a step is −Σ A · log p over all tokens that the model sampled, divided by their number in the step. This is
GRPO (arXiv 2402.03300) without division by the rewards' deviation, without a KL penalty and without clipping, since the
model learns once from each sample that it wrote itself; with DAPO's mean over tokens (arXiv 2503.14476, equation 8).

Q = questions, n = samples of each question, S = sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from efficientbench.training import groups
from efficientbench.training.data.batch import Batch
from efficientbench.training.data.batches import Batches


@dataclass(frozen=True)
class Rollout:
    """A prompt with one sampled completion."""

    tokens: tuple[int, ...]
    """Tokens of prompt and completion."""
    sampled: tuple[bool, ...]
    """Whether the model sampled each token; False for the prompt and for a tool's output."""
    advantage: float
    """The completion's advantage A."""


def advantages(rewards: torch.Tensor) -> torch.Tensor:
    """Return each reward [Q, n] minus the mean of its question; exactly 0 where all rewards of a question are equal."""
    equal = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    return torch.where(equal, 0.0, rewards - rewards.mean(dim=1, keepdim=True))


def without_signal(rewards: torch.Tensor) -> int:
    """Return the number of questions without a gradient, because all their samples' rewards [Q, n] are equal."""
    return int((rewards == rewards[:, :1]).all(dim=1).sum())


def micro_batches(
    rollouts: Sequence[Rollout], seq_len: int, size: int, divisor: float, device: torch.device
) -> Iterator[Batch]:
    """Yield micro-batches of `size` rollouts, each padded to S + 1 tokens; padding has weight 0.

    Args:
        rollouts: this rank's rollouts, a multiple of `size`, none longer than S + 1 tokens.
        seq_len: S.
        size: rollouts of a micro-batch.
        divisor: `Batch.divisor`, with the sampled tokens of the step as targets.
        device: this rank's device.
    """
    for first in range(0, len(rollouts), size):
        rows = rollouts[first : first + size]
        tokens = torch.zeros(len(rows), seq_len + 1, dtype=torch.int64)
        weights = torch.zeros(len(rows), seq_len + 1)
        for row, rollout in enumerate(rows):
            length = len(rollout.tokens)
            tokens[row, :length] = torch.tensor(rollout.tokens)
            weights[row, :length] = torch.tensor(rollout.sampled) * rollout.advantage
        targets = sum(sum(rollout.sampled[1:]) for rollout in rows)
        tokens, weights = tokens.to(device), weights.to(device)
        yield Batch(tokens[:, :-1], tokens[:, 1:], weights[:, 1:], targets, divisor)


class RolloutBatches(Batches):
    """Batches whose training steps read `rollouts`; validation reads conversations."""

    rollouts: Sequence[Rollout] = ()
    """The rollouts of all replicas for the next step, replica after replica; the caller sets them."""

    def training_step(self, step: int) -> Iterator[Batch]:
        """Yield this rank's micro-batches of the rollouts."""
        training, (replica, replicas) = self.config.training, groups.replica()
        targets = sum(sum(rollout.sampled[1:]) for rollout in self.rollouts)
        count = self.micro_batches * training.micro_batch_size
        own = self.rollouts[replica * count : (replica + 1) * count]
        divisor = targets / (self.micro_batches * replicas)
        return micro_batches(own, training.seq_len, training.micro_batch_size, divisor, self.device)

    @property
    def too_long(self) -> None:
        """None, because rollouts come from no source."""
        return None
