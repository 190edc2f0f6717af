"""Check that a step's loss and gradients are finite, and find the ranks where they are not.

Reductions spread a number that is not finite to every rank, so each rank checks its own loss and gradients before them.
The checks are sent with the step's other sums, and the device decides on them: they add no wait to a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup

from efficientbench.basics.errors import NonFiniteError

LOSS, SIZE, NORM = range(3)
"""Columns of the checks [ranks, 3] float32, a row for each rank: 1 if its loss is not finite, else 0; the size of its
own gradients; the norm of all gradients, or 0 if Megatron's own update computes it later."""


@dataclass(frozen=True)
class NonFinite:
    """A step whose loss or gradients are not finite on some rank."""

    ranks: tuple[int, ...]
    """The ranks whose own loss or gradients are not finite, in order; ranks that share a layer's work agree. If there
    is none, the rank with the largest gradients."""
    message: str
    """The message to the user: what is not finite, and on which ranks."""


class FiniteCheck:
    """Checks one rank's own loss and gradients."""

    def __init__(
        self, stages: list[DistributedDataParallel], device: torch.device, gradients_may_overflow: bool
    ) -> None:
        """Measure the gradients of `stages` from now on.

        `gradients_may_overflow`: whether to leave gradients to fp16's loss scaler and check the loss alone.
        """
        self.device = device
        self._norms: list[torch.Tensor] = []
        """The norm of each bucket of gradients in the step, before its reduction."""
        if gradients_may_overflow:
            return
        for stage in stages:
            for group in (*stage.bucket_groups, *stage.expert_parallel_bucket_groups):
                # Called once for each group in a step, when its gradients are complete.
                group.start_grad_sync = partial(self._measured, group, group.start_grad_sync)

    def _measured(
        self, group: _ParamAndGradBucketGroup, start: Callable[..., None], force_all_reduce: bool | None = False
    ) -> None:
        self._norms += [torch.linalg.vector_norm(bucket.grad_data) for bucket in group.buckets]
        start(force_all_reduce=force_all_reduce)

    def norm(self) -> torch.Tensor:
        """Return the norm of this rank's own gradients in the step, [] on the device."""
        return torch.linalg.vector_norm(torch.stack(self._norms))

    def row(self, loss: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        """Return this rank's row of the checks, [3] float32 on the device.

        Args:
            loss: [], this rank's loss.
            norm: [], the norm of all gradients; None if Megatron's own update computes it later.
        """
        zero = torch.zeros((), device=self.device)
        # The sum of the buckets' norms, because some devices compute a maximum wrongly if there is a NaN. Gradients
        # that may overflow have size 0: they are no reason to skip the step here.
        norms, self._norms = self._norms, []
        size = torch.stack(norms).sum() if norms else zero
        return torch.stack([(~torch.isfinite(loss)).float(), size, zero if norm is None else norm])


def skip_flag(checks: torch.Tensor) -> torch.Tensor:
    """Return [] float32 on the device: 1 if `find` would return a problem for the checks, else 0."""
    return ((checks[:, LOSS] > 0).any() | ~torch.isfinite(checks[:, SIZE:]).all()).float()


def find(checks: torch.Tensor) -> NonFinite | None:
    """Return what is not finite in a step, and on which ranks; None if nothing is. `checks`: [ranks, 3] on the host."""
    rows = checks.tolist()
    flags = [(loss > 0, not math.isfinite(size)) for loss, size, _ in rows]
    ranks = tuple(rank for rank, own in enumerate(flags) if any(own))
    if ranks:
        what = " and ".join(name for name, flag in zip(("loss", "gradients"), flags[ranks[0]], strict=True) if flag)
        others = f" (and on ranks {', '.join(map(str, ranks[1:]))})" if len(ranks) > 1 else ""
        return NonFinite(ranks, f"the {what} {'is' if what == 'loss' else 'are'} not finite on rank {ranks[0]}{others}")
    # The norm of all gradients can overflow though each rank's part is finite.
    norm = next((norm for *_, norm in rows if not math.isfinite(norm)), None)
    if norm is None:
        return None
    return NonFinite((_largest(checks),), f"the norm of the gradients over all ranks is not finite ({norm})")


def check_norm(step: int, norm: float | None, checks: torch.Tensor) -> None:
    """Refuse a norm that is not finite though each rank's gradients were, after Megatron's own update.

    Args:
        step: the step's number.
        norm: the norm of all gradients; None if the update was skipped.
        checks: [ranks, 3] on the host.

    Raises:
        NonFiniteError: the norm is not finite; the weights are updated already.
    """
    if norm is not None and not math.isfinite(norm):
        message = f"step {step}: the norm of the gradients over all ranks is not finite ({norm})"
        raise NonFiniteError(message, step, _largest(checks))


def _largest(checks: torch.Tensor) -> int:
    """Return the rank with the largest gradients, which are finite on every rank."""
    return int(checks[:, SIZE].argmax())
