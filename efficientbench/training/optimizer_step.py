"""An update that no rank's host waits for: the device computes norm and clipping, and leaves the step out by itself.

megatron's own `step` reads the norm on the host, which drains the device's queue between the backward pass and the
update. Its lists, groups, shards and copies serve here too; only the norm stays where it was computed.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core.optimizer.optimizer import MegatronOptimizer
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def can_queue(optimizer: MegatronOptimizer, device: torch.device) -> bool:
    """Whether `QueuedUpdate` can serve: tried on `device`, since not every fused AdamW has a flag to leave a step out.

    fp16's loss scaler decides on the host, and Apex's and Transformer Engine's AdamW have no such flag.
    """
    parts = optimizer.chained_optimizers
    ours = all(part.optimizer is None or type(part.optimizer) is torch.optim.AdamW for part in parts)
    return ours and not any(part.config.fp16 for part in parts) and _leaves_out_by_flag(device)


def _leaves_out_by_flag(device: torch.device) -> bool:
    weight = torch.ones(2, device=device, requires_grad=True)
    try:
        adamw = torch.optim.AdamW([weight], lr=0.5, fused=True)
        left_out = []
        for flag, gradient in ((1.0, torch.nan), (0.0, 1.0)):
            weight.grad = torch.full_like(weight, gradient)
            _step(adamw, torch.full((), flag, device=device))
            state = [value.cpu() for value in adamw.state[weight].values()]
            left_out.append(not any(map(torch.count_nonzero, state)) and bool((weight.cpu() == 1).all()))
    except RuntimeError:
        # The device has no such kernel, or one that takes no flag.
        return False
    return left_out == [True, False]


def _step(adamw: torch.optim.Optimizer, left_out: torch.Tensor) -> None:
    # Where torch.amp.GradScaler puts it for AdamW's fused kernels.
    adamw.found_inf = left_out  # type: ignore[attr-defined]
    adamw.step()
    del adamw.found_inf  # type: ignore[attr-defined]


class QueuedUpdate:
    """The optimizer's part of a step, for an optimizer that `can_queue`."""

    def __init__(self, optimizer: MegatronOptimizer, device: torch.device) -> None:
        self.optimizer, self.device = optimizer, device

    @torch.no_grad()
    def norm(self) -> torch.Tensor:
        """Prepare the gradients for an update and queue their norm over all ranks, [] float32 on the device.

        In float32 and over the groups of megatron's `get_grad_norm`, whose value it is.
        """
        self.optimizer.prepare_grads()
        parts = self.optimizer.chained_optimizers
        gradients = [part.get_main_grads_for_grad_norm() for part in parts]
        groups = [part.get_grad_stats_parallel_group() for part in parts]
        if self.optimizer.grads_states_parallel_group_is_shared():
            gradients, groups = [[each for own in gradients for each in own]], groups[:1]
        squares = []
        for own, group in zip(gradients, groups, strict=True):
            square = get_total_norm(own).square() if own else torch.zeros((), device=self.device)
            dist.all_reduce(square, group=group)
            squares.append(square)
        return torch.stack(squares).sum().sqrt()

    @torch.no_grad()
    def update(self, norm: torch.Tensor, left_out: torch.Tensor) -> None:
        """Queue clipping and update; where `left_out` is 1, weights, moments and step counts stay as they are.

        Args:
            norm: of this step.
            left_out: [] float32 on the device, 0 or 1, the same on all ranks.
        """
        parts = [part for part in self.optimizer.chained_optimizers if part.optimizer is not None]
        for part in parts:
            if part.config.clip_grad > 0.0:
                clip_grads_with_norm_(part.get_parameters(), part.config.clip_grad, norm)
            part.optimizer.found_inf = left_out
        self.optimizer.step_with_ready_grads()
        for part in parts:
            del part.optimizer.found_inf
