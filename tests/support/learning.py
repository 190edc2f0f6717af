"""Teaches a tiny model some sequences by heart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from efficientbench.config.schema import RunConfig

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT


def learn(
    model: GPT, config: RunConfig, tokens: torch.Tensor, mask: torch.Tensor, steps: int = 500, below: float = 0.01
) -> GPT:
    """Train on tokens [B, T] where the mask [B, T] is 1, until the mean loss is `below`; return it in evaluation."""
    from efficientbench.training.update.optimizer import wrap_data_parallel

    wrapped = wrap_data_parallel(model, config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    weights = mask[:, 1:].float()
    for _ in range(steps):
        wrapped.zero_grad_buffer()
        loss = wrapped(tokens[:, :-1], tokens[:, 1:], weights) / weights.sum()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad
        optimizer.step()
        # What is there would be added to the next ones.
        optimizer.zero_grad()
        if loss.item() < below:
            return model.eval()
    raise AssertionError(f"it has not learned: loss {loss.item()}")
