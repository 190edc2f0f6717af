"""Whether a step's loss and gradients are finite, and on which ranks they are not.

Reductions spread what is not finite to every rank, so each rank looks at its own loss and gradients before them. What
it sees travels with the step's other sums, and the device decides on it: no step waits once more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads

from efficientbench.training.errors import NonFiniteError


@dataclass(frozen=True)
class NonFinite:
    """A step whose loss or gradients are not finite on some rank."""

    ranks: tuple[int, ...]
    """Those that saw it in what was their own, in order; ranks that share a layer's work share its fate. Where none
    did, the one whose gradients were the largest."""
    told: str
    """For people."""


class FiniteCheck:
    """One rank's look at its own loss and gradients."""

    def __init__(self, device: torch.device, gradients_may_overflow: bool) -> None:
        """`gradients_may_overflow`: fp16 gradients do, and the loss scaler sees to them."""
        self.device, self.gradients_may_overflow = device, gradients_may_overflow
        self._norms: list[torch.Tensor] = []

    def finalize_gradients(
        self,
        stages: list[DistributedDataParallel],
        num_tokens: torch.Tensor | None = None,
        pg_collection: Any = None,
        force_all_reduce: bool | None = False,
    ) -> None:
        """Look at this rank's gradients, then let megatron reduce them: takes its `finalize_model_grads`' place."""
        self._norms = []
        if not self.gradients_may_overflow:
            for stage in stages:
                for buffer in [*stage.buffers, *stage.expert_parallel_buffers]:
                    self._norms.append(torch.linalg.vector_norm(buffer.grad_data))
        finalize_model_grads(stages, num_tokens, pg_collection=pg_collection, force_all_reduce=force_all_reduce)

    def flags(self, loss: torch.Tensor) -> torch.Tensor:
        """[2] float32 on the device: 1 where this rank's loss is not finite, else 0; and the size of its own gradients,
        the sum of its buffers' norms: not finite where they are not, 0 where they may overflow."""
        # No maximum, since not every device's is NaN where one of its numbers is.
        size = torch.stack(self._norms).sum() if self._norms else torch.zeros((), device=self.device)
        return torch.stack([(~torch.isfinite(loss)).float(), size])


def left_out(seen: torch.Tensor) -> torch.Tensor:
    """[] float32 on the device: 1 where `find` would find something in `seen`."""
    return ((seen[:, 0] > 0).any() | ~torch.isfinite(seen[:, 1:]).all()).float()


def find(seen: torch.Tensor) -> NonFinite | None:
    """What is not finite in a step, and where.

    Args:
        seen: [ranks, 3] on the host, of every rank: its two `flags`, and the norm of all gradients, where that is known
            before the update. Parts that are each finite can have a norm that is not.
    """
    rows = seen.tolist()
    flags = [(loss > 0, not math.isfinite(size)) for loss, size, _ in rows]
    ranks = tuple(rank for rank, own in enumerate(flags) if any(own))
    if ranks:
        what = " and ".join(name for name, flag in zip(("loss", "gradients"), flags[ranks[0]], strict=True) if flag)
        others = f" (and on ranks {', '.join(map(str, ranks[1:]))})" if len(ranks) > 1 else ""
        return NonFinite(ranks, f"the {what} {'is' if what == 'loss' else 'are'} not finite on rank {ranks[0]}{others}")
    norm = next((norm for *_, norm in rows if not math.isfinite(norm)), None)
    if norm is None:
        return None
    return NonFinite((largest(seen),), f"the norm of the gradients over all ranks is not finite ({norm})")


def largest(seen: torch.Tensor) -> int:
    """The rank whose own gradients, each finite, were the largest; `seen` is as of `find`."""
    return int(seen[:, 1].argmax())


def check_norm(step: int, norm: float | None, rank: int) -> None:
    """Refuse a gradient norm that is not finite though each rank's part was, where megatron made the update.

    Args:
        step: whose norm it is.
        norm: over all ranks.
        rank: the one to name.

    Raises:
        NonFiniteError: too late to leave the weights as they were.
    """
    if norm is not None and not math.isfinite(norm):
        raise NonFiniteError(
            f"step {step}: the norm of the gradients over all ranks is not finite ({norm})", step, rank
        )
