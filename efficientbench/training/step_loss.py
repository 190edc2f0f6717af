"""The loss of a micro-batch, as Megatron's schedules take it and as a step's events report it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from megatron.core.distributed import DistributedDataParallel

from efficientbench.training.batches import Batch

LossFunction = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""Returns from the model's output three values, with `calculate_per_token_loss` off: Megatron then divides by the
tokens of all ranks. A mean of two values would multiply gradients by CP, and the flag would weaken the auxiliary loss
under CP and SP. The third are loss, tokens and UTF-8 bytes, summed."""


class StepLoss:
    """Weighs each token by its share of the replica's mean loss, so that the forward pass knows the gradient's scale.

    The gradients of the output projection then need no tensor that waits for the scale. A loss scaler, which fp16 has,
    tells it in the backward pass only.
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
        """Return the weights [B, S] of a micro-batch's tokens, and what to do with their weighted sum of losses."""
        tokens = batch.loss_mask.sum()
        if self.scaler:
            return batch.loss_mask, partial(self._divided_by_megatron, tokens)
        share = 1 / (tokens.clamp(min=1) * self.micro_batches)
        return batch.loss_mask * share, partial(self._divided, tokens, share)

    @staticmethod
    def _divided_by_megatron(
        tokens: torch.Tensor, loss: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # A copy, because the schedules divide the loss in place.
        return loss, tokens.int(), _sums(loss.detach().clone(), tokens)

    def _divided(
        self, tokens: torch.Tensor, share: torch.Tensor, loss: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # Megatron divides by the second value and by the micro-batches: its quotient is the loss as it was computed.
        return loss * self.micro_batches, torch.ones_like(tokens).int(), _sums(loss.detach() / share, tokens)


def _sums(loss: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return torch.stack([loss.float(), tokens.float(), torch.zeros_like(tokens)])
