"""The rotation of rotary position embeddings (arXiv 2104.09864), halves layout as in Qwen2 and Llama."""

from __future__ import annotations

from typing import Any

import torch

NAME = "torch elementwise"


class Rotate(torch.autograd.Function):
    """Rotates pairs (x_i, x_{i + R/2}) of the last R dimensions and leaves those before as they are.

    The backward pass is the rotation by the opposite angle.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grad_outputs[0], cos, -sin), None, None


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    left = x.shape[-1] - 2 * cos.shape[-1]
    if left:
        out[..., :left] = x[..., :left]
    first, second = x[..., left:].chunk(2, dim=-1)
    out_first, out_second = out[..., left:].chunk(2, dim=-1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin)
    return out


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the last R dimensions of x [S, B, heads, D] by the angles whose cos and sin are [S, 1, 1, R/2]."""
    rotated: torch.Tensor = Rotate.apply(x, cos, sin)
    return rotated
