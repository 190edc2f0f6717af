"""SwiGLU (arXiv 2002.05202): silu(gate) · up."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from efficientbench.model.kernels import npu_fused
from efficientbench.model.kernels.fusion import fused

NAME = "torch elementwise, activation recomputed in backward"
FUSED = "torch.compile, activation recomputed in backward"


class SwiGLU(torch.autograd.Function):
    """SwiGLU that keeps only its input for the backward pass, which recomputes the activation."""

    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate_up)
        return _gated(gate_up)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        grad = torch.empty_like(gate_up)
        grad_gate, grad_up = grad.chunk(2, dim=-1)
        torch.mul(grad_outputs[0], F.silu(gate), out=grad_up)
        grad_gate.copy_(torch.ops.aten.silu_backward(grad_outputs[0] * up, gate))
        return grad


def _gated(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


class FusedSwiGLU(torch.autograd.Function):
    """SwiGLU by one compiled kernel for each pass, which rounds once."""

    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate_up)
        return fused(_activate, gate_up.shape[-1:])(gate_up)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        (gate_up,) = ctx.saved_tensors
        return fused(_activate_backward, gate_up.shape[-1:])(grad_outputs[0], gate_up)


def _activate(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def _activate_backward(grad: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    grad, share = grad.float(), torch.sigmoid(gate)
    grad_gate = grad * up * share * (1 + gate * (1 - share))
    return torch.cat([grad_gate, grad * gate * share], dim=-1).to(gate_up.dtype)


def swiglu(gate_up: torch.Tensor, fuse: bool = False) -> torch.Tensor:
    """Return silu(gate) · up [..., F] for gate_up [..., 2 · F], gate and up side by side.

    `fuse`: use compiled kernels.
    """
    if not fuse and npu_fused.serves(gate_up.device.type):
        return npu_fused.swiglu(gate_up)
    if not fuse and not torch.is_grad_enabled():
        return _gated(gate_up)
    return (FusedSwiGLU if fuse else SwiGLU).apply(gate_up)
