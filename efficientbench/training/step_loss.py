"""The loss of a micro-batch, in the form of Megatron's schedules and of the step's event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from megatron.core.distributed import DistributedDataParallel

from efficientbench.training.data.batch import Batch

LossFunction = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""Returns three values for the model's output: the loss; the divisor, by which (and by the number of micro-batches)
Megatron divides it with `calculate_per_token_loss` off; and [3] sums of loss, targets and UTF-8 bytes for the report.
Gradients are averaged over replicas. Only two values would multiply gradients by CP, and the flag would weaken the
auxiliary loss under CP and SP."""


class StepLoss:
    """Divides the weighted losses of a micro-batch by the targets of the step.

    If it divided by the micro-batch's own targets, a target of a short answer would weigh more. The weights are divided
    before the forward pass, which then knows the gradient's scale and needs no tensor for the unscaled gradient of the
    output projection. With fp16's loss scaler the scale is known only in the backward pass.
    """

    def __init__(self, stages: list[DistributedDataParallel], micro_batches: int, scaler: bool) -> None:
        """Configure the stages' loss kernel.

        Args:
            stages: this rank's stages.
            micro_batches: micro-batches of one replica in a step.
            scaler: whether there is a loss scaler.
        """
        self.micro_batches, self.scaler = micro_batches, scaler
        for stage in stages:
            stage.config.loss_kernel = replace(stage.config.loss_kernel, gradient_is_one=not scaler)

    def of(self, batch: Batch) -> tuple[torch.Tensor, LossFunction]:
        """Return a micro-batch's weights [B, S] for the model, and the loss function for its weighted sum of losses."""
        if self.scaler:
            return batch.weights, partial(_divided, batch)
        share = 1 / (batch.divisor * self.micro_batches)
        return batch.weights * share, partial(self._divided_before, batch, share)

    def _divided_before(
        self, batch: Batch, share: float, loss: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # Cancels Megatron's division by the micro-batches.
        return loss * self.micro_batches, _one(loss), _sums(loss / share, batch.targets)


def _divided(batch: Batch, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return loss / batch.divisor, _one(loss), _sums(loss, batch.targets)


def _one(loss: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(loss, dtype=torch.int)


def _sums(loss: torch.Tensor, targets: int) -> torch.Tensor:
    loss = loss.detach().float()
    return torch.stack([loss, torch.full_like(loss, targets), torch.zeros_like(loss)])
