"""The row of numbers that each rank sends to all others at the end of a step."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Rows(NamedTuple):
    """The parts of the ranks' rows in float32, [ranks, …] each."""

    checks: torch.Tensor
    """[ranks, 3]: the columns of `finite`."""
    stop: torch.Tensor
    """[ranks, 1]: 1 where the rank was asked to stop."""
    save: torch.Tensor
    """[ranks, 1]: 1 where the rank asks for a checkpoint after the step."""
    last: torch.Tensor
    """[ranks, 1]: 1 where the rank wants no step after this one, since the run has measured for long enough."""
    sums: torch.Tensor
    """[ranks, n, 3]: loss, tokens and UTF-8 bytes of each of n micro-batches; zeros from ranks without the loss."""
    routed: torch.Tensor
    """[ranks, layers · (1 + experts)]: the routers' counts; empty for a model without experts."""

    @classmethod
    def of(cls, gathered: torch.Tensor, sums_shape: torch.Size) -> Rows:
        """Split gathered rows [ranks, width]; `sums_shape`: [n, 3]."""
        checks, stop, save, last, sums, routed = gathered.tensor_split([3, 4, 5, 6, 6 + sums_shape.numel()], dim=1)
        return cls(checks, stop, save, last, sums.reshape(-1, *sums_shape), routed)

    def total(self) -> torch.Tensor:
        """Return the sums [3] of loss, tokens and bytes over all ranks and micro-batches; the rows are on the host.

        The sum is in float64, which not all devices have; each addend is exact in float32.
        """
        return self.sums.double().sum(dim=-2).sum(dim=0)
