"""Micro-batches of rollouts, for the trainer that serves all objectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from efficientbench.training import groups
from efficientbench.training.data.batch import Batch
from efficientbench.training.data.batches import Batches
from efficientbench.training.reinforcement.advantages import Rollout, micro_batches


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
