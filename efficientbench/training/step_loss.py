"""The loss of a micro-batch, as Megatron's schedules take it and as a step's events report it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from megatron.core.distributed import DistributedDataParallel

from efficientbench.training.data.batch import Batch

LossFunction = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""Returns from the model's output three values, with `calculate_per_token_loss` off: Megatron then divides by the
second value and the number of micro-batches, and averages gradients over replicas. A mean of two values would multiply
gradients by CP, and the flag would weaken the auxiliary loss under CP and SP. The third are loss, targets and UTF-8
bytes, summed."""


class StepLoss:
    """Divides the weighted losses of a micro-batch by the targets of the whole step.

    By the targets of its own micro-batch, a target of a short answer would weigh more. The weights are divided before
    the forward pass, which then knows the gradient's scale: the gradients of the output projection need no tensor that
    waits for it. A loss scaler, which fp16 has, gives it in the backward pass only.
    """

    def __init__(self, stages: list[DistributedDataParallel], micro_batches: int, scaler: bool) -> None:
        """Take the stages that compute it.

        Args:
            stages: of this rank.
            micro_batches: of a replica in a step.
            scaler: whether the loss has one.
        """
        self.micro_batches, self.scaler = micro_batches, scaler
        for stage in stages:
            stage.config.loss_kernel = replace(stage.config.loss_kernel, gradient_is_one=not scaler)

    def of(self, batch: Batch) -> tuple[torch.Tensor, LossFunction]:
        """Return the weights [B, S] of a micro-batch's positions, and what to do with their weighted sum of losses."""
        if self.scaler:
            return batch.weights, partial(_divided, batch)
        share = 1 / (batch.divisor * self.micro_batches)
        return batch.weights * share, partial(self._divided_before, batch, share)

    def _divided_before(
        self, batch: Batch, share: float, loss: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # Megatron's division by the micro-batches gives the loss as it was computed.
        return loss * self.micro_batches, _one(loss), _sums(loss / share, batch.targets)


def _divided(batch: Batch, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return loss / batch.divisor, _one(loss), _sums(loss, batch.targets)


def _one(loss: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(loss, dtype=torch.int)


def _sums(loss: torch.Tensor, targets: int) -> torch.Tensor:
    loss = loss.detach().float()
    return torch.stack([loss, torch.full_like(loss, targets), torch.zeros_like(loss)])
