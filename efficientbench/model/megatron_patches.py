"""The few repairs that megatron-core 0.16.1 itself needs, each with its reason."""

from __future__ import annotations

import types

import torch
from megatron.core.tensor_parallel import layers, mappings
from torch.distributed import ProcessGroup


def apply() -> None:
    """Repair megatron-core, once per process, before a model is built."""
    if mappings._reduce is _reduce_contiguous:
        return
    mappings._reduce = _reduce_contiguous
    _provide_weight_gradient_accumulation()


_reduce = mappings._reduce


def _reduce_contiguous(input_: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    # The original all-reduces a contiguous copy of a non-contiguous input and returns the input, unreduced.
    return _reduce(input_.contiguous(), group)


def _provide_weight_gradient_accumulation() -> None:
    # Linear layers can add weight gradients to `main_grad` in the matmul itself, but only through an extension that
    # Apex compiles. A matmul that accumulates says the same to every device, and saves a pass over all gradients.
    if layers._grad_accum_fusion_available:
        return
    layers.fused_weight_gradient_mlp_cuda = types.SimpleNamespace(
        wgrad_gemm_accum_fp32=_accumulate_weight_gradient, wgrad_gemm_accum_fp16=_accumulate_weight_gradient
    )
    layers._grad_accum_fusion_available = True


def _accumulate_weight_gradient(input_: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor) -> None:
    """main_grad [O, I] += grad_output [N, O]ᵀ · input [N, I]; main_grad may be wider than the others."""
    if main_grad.dtype == grad_output.dtype:
        main_grad.addmm_(grad_output.t(), input_)
    else:
        main_grad.add_(grad_output.t().matmul(input_))
