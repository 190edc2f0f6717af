"""The rotation of rotary position embeddings (arXiv 2104.09864), halves layout as in Qwen2 and Llama."""

from __future__ import annotations

from typing import Any

import torch

from efficientbench.config.schema import RunConfig
from efficientbench.model.kernels import npu_fused
from efficientbench.model.kernels.fusion import fused
from efficientbench.model.kernels.own_kernels import OwnKernels

NAME, FUSED = "torch elementwise", "torch.compile"


class Rotate(torch.autograd.Function):
    """Rotates pairs (x_i, x_{i + R/2}) of the last R dimensions, and leaves the dimensions before them unchanged.

    The backward pass is the rotation by the opposite angle.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, fuse: bool) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.fuse = fuse
        return _turn(x, cos, sin, fuse, back=False)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grad_outputs[0], cos, sin, ctx.fuse, back=True), None, None, None


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, fuse: bool, back: bool) -> torch.Tensor:
    if torch.compiler.is_compiling():
        # A compiled step cannot write into views.
        return _rotate_whole(x, cos, sin, back)
    turn = fused(_rotate_whole, x.shape[2:]) if fuse else _rotate
    return turn(x, cos, sin, back)


def _rotate_whole(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, back: bool) -> torch.Tensor:
    """Compute `_rotate` without writing into parts of the result, for the compiler."""
    left = x.shape[-1] - 2 * cos.shape[-1]
    first, second = x[..., left:].chunk(2, dim=-1)
    sign = -1 if back else 1
    return torch.cat([x[..., :left], first * cos - sign * second * sin, second * cos + sign * first * sin], dim=-1)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, back: bool) -> torch.Tensor:
    """Rotate by the angles, or by their opposites if `back`."""
    if npu_fused.serves(x.device.type):
        return npu_fused.rotate(x, cos, -sin if back else sin)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    left = x.shape[-1] - 2 * cos.shape[-1]
    if left:
        out[..., :left] = x[..., :left]
    first, second = x[..., left:].chunk(2, dim=-1)
    out_first, out_second = out[..., left:].chunk(2, dim=-1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=1 if back else -1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin, value=-1 if back else 1)
    return out


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, fuse: bool = False) -> torch.Tensor:
    """Rotate the last R dimensions of x [S, B, heads, D] by angles with cos and sin [S, 1 or B, 1, R/2].

    `fuse`: use a compiled kernel.
    """
    if not torch.is_grad_enabled():
        return _turn(x, cos, sin, fuse, back=False)
    return Rotate.apply(x, cos, sin, fuse)


def _names(config: RunConfig, device_type: str) -> dict[str, str]:
    by_torch = npu_fused.ROTARY if npu_fused.serves(device_type) else NAME
    return {"rope": FUSED if config.kernels.fused else by_torch}


def _fallbacks(config: RunConfig, device_type: str) -> dict[str, str]:
    return {"rope": npu_fused.UNDOCUMENTED} if device_type == "npu" and not npu_fused.serves(device_type) else {}


KERNELS = OwnKernels(_names, _fallbacks)
