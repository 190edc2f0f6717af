"""The sum of NSA's branches, each times its gate (arXiv 2502.11089, equation 5).

N = batch × groups, S = sequence, G = query heads of a group, D = head dimension.
"""

from __future__ import annotations

from typing import Any

import torch

from efficientbench.model.kernels.fusion import fused


class FusedGate(torch.autograd.Function):
    """The gated sum by one compiled kernel for each pass, which rounds once."""

    @staticmethod
    def forward(ctx: Any, gates: torch.Tensor, *branches: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gates, *branches)
        return fused(_gate)(gates, *branches)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return fused(_gate_backward)(grad_outputs[0], *ctx.saved_tensors)


def _gate(gates: torch.Tensor, *branches: torch.Tensor) -> torch.Tensor:
    terms = [gate.float() * branch for gate, branch in zip(gates.unbind(0), branches, strict=True)]
    return (terms[0] + terms[1] + terms[2]).to(branches[0].dtype)


def _gate_backward(grad: torch.Tensor, gates: torch.Tensor, *branches: torch.Tensor) -> tuple[torch.Tensor, ...]:
    wide = grad.float()
    grad_gates = torch.stack([(wide * branch).sum(dim=-1, keepdim=True) for branch in branches])
    return grad_gates.to(gates.dtype), *((wide * gate).to(grad.dtype) for gate in gates.unbind(0))


def gated_sum(gates: torch.Tensor, branches: list[torch.Tensor], fuse: bool = False) -> torch.Tensor:
    """Return the sum of three branches [N, S, G, D], each times its gate; gates [3, N, S, G, 1].

    `fuse`: use compiled kernels.
    """
    if fuse:
        return FusedGate.apply(gates, *branches)
    first, second, third = gates.unbind(0)
    return first * branches[0] + second * branches[1] + third * branches[2]
