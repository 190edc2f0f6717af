"""ReLU² (arXiv 2109.08668): max(x, 0)²."""

from __future__ import annotations

from typing import Any

import torch

from efficientbench.model.kernels.fusion import fused

NAME = "torch elementwise"
FUSED = "torch.compile"


class ReLU2(torch.autograd.Function):
    """ReLU² that keeps only its input for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fuse: bool) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.fuse = fuse
        return fused(_activate, x.shape[-1:])(x) if fuse else torch.relu(x).square_()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        if ctx.fuse:
            return fused(_activate_backward, x.shape[-1:])(grad_outputs[0], x), None
        return torch.relu(x).mul_(grad_outputs[0]).mul_(2), None


def _activate(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.float()).square().to(x.dtype)


def _activate_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (2 * grad.float() * torch.relu(x.float())).to(x.dtype)


def relu2(x: torch.Tensor, fuse: bool = False) -> torch.Tensor:
    """Return max(x, 0)² for x of any shape.

    `fuse`: use compiled kernels.
    """
    if not fuse and not torch.is_grad_enabled():
        return torch.relu(x).square_()
    return ReLU2.apply(x, fuse)
