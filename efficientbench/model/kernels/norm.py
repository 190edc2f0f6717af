"""RMSNorm (arXiv 1910.07467)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from efficientbench.model.kernels import npu_fused
from efficientbench.model.kernels.fusion import fused

NAME = "torch rms_norm; on a CPU its formula, which keeps only the input and a factor per token"
FUSED = "torch.compile, which keeps only the input and a factor per token"


class FormulaRMSNorm(torch.autograd.Function):
    """The formula in float32 or wider, for a CPU, where torch's rms_norm keeps float32 copies and is slower.

    Also for a wider weight, which other kernels do not take.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
        normed, factor = _by_formula(x, weight, epsilon)
        ctx.save_for_backward(x, weight, factor)
        return normed

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        x, weight, factor = ctx.saved_tensors
        grad = grad_outputs[0].to(factor.dtype)
        normed = x * factor
        product = grad * normed
        if weight is None:
            projection = product.mean(dim=-1, keepdim=True)
            return normed.mul_(projection).neg_().add_(grad).mul_(factor).to(x.dtype), None, None
        grad_weight = product.flatten(0, -2).sum(dim=0)
        projection = (product @ weight.to(factor.dtype)).div_(x.shape[-1])[..., None]
        grad_x = (grad * weight).sub_(normed.mul_(projection)).mul_(factor)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype), None


def _by_formula(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
    factor = length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
    normed = x * factor
    return (normed if weight is None else normed.mul_(weight)).to(x.dtype), factor


class FusedRMSNorm(torch.autograd.Function):
    """The formula in float32 by a few compiled kernels; keeps the input and a factor per token."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
        normed, factor = fused(_normalize, x.shape[2:])(x, weight, epsilon)
        ctx.save_for_backward(x, weight, factor)
        return normed

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        grad = grad_outputs[0]
        grad_x, grad_weight = fused(_normalize_backward, grad.shape[2:])(grad, *ctx.saved_tensors)
        return grad_x, grad_weight, None


class FusedSumAndNorm(torch.autograd.Function):
    """A sum and its RMSNorm by a few compiled kernels; keeps the sum and a factor per token.

    A separate norm would read the sum once more, and the backward pass would add the sum's two gradients in an extra
    pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total, normed, factor = fused(_add_and_normalize, x.shape[2:])(x, residual, weight, epsilon)
        ctx.save_for_backward(total, weight, factor)
        return total, normed

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, None]:
        compiled = fused(_add_and_normalize_backward, grad_outputs[0].shape[2:])
        grad, grad_weight = compiled(*grad_outputs, *ctx.saved_tensors)
        return grad, grad, grad_weight, None


def _normalize(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.float()
    factor = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
    normed = wide * factor
    return (normed if weight is None else normed * weight.float()).to(x.dtype), factor


def _normalize_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, factor: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    grad = grad.float()
    normed = x.float() * factor
    weighted = grad if weight is None else grad * weight.float()
    projection = (weighted * normed).mean(dim=-1, keepdim=True)
    grad_x = ((weighted - normed * projection) * factor).to(x.dtype)
    return grad_x, None if weight is None else (grad * normed).flatten(0, -2).sum(dim=0).to(weight.dtype)


def _add_and_normalize(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    total = residual + x
    return total, *_normalize(total, weight, epsilon)


def _add_and_normalize_backward(
    grad_total: torch.Tensor,
    grad_normed: torch.Tensor,
    total: torch.Tensor,
    weight: torch.Tensor | None,
    factor: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    grad, grad_weight = _normalize_backward(grad_normed, total, weight, factor)
    return grad_total + grad, grad_weight


def sum_and_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x + residual and that sum's `rms_norm`, by compiled kernels; both are [..., H] in the inputs' dtype."""
    total, normed = FusedSumAndNorm.apply(x, residual, weight, epsilon)
    return total, normed


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, fuse: bool = False) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + epsilon) · weight over the last dimension; x [..., H], weight [H] or None for ones.

    A weight may be wider than x. `fuse`: use compiled kernels.
    """
    if fuse:
        return FusedRMSNorm.apply(x, weight, epsilon)
    if x.device.type == "cpu" or (weight is not None and weight.dtype != x.dtype):
        # For one token, `apply` takes longer than the computation.
        if not torch.is_grad_enabled():
            return _by_formula(x, weight, epsilon)[0]
        return FormulaRMSNorm.apply(x, weight, epsilon)
    if npu_fused.serves(x.device.type):
        return npu_fused.rms_norm(x, weight, epsilon)
    return F.rms_norm(x, (x.shape[-1],), weight, epsilon)
