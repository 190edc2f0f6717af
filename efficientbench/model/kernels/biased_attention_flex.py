"""Causal attention with a bias by distance, by torch's FlexAttention, on NVIDIA GPUs.

FlexAttention's own gradient of the bias would add every score's part by an atomic operation. So FlexAttention takes the
bias as a constant, and our own kernel computes its gradient.

S = sequence, B = batch, D = head dimension.
"""

from __future__ import annotations

from typing import Any

import torch

from efficientbench.model.kernels import flex

TRAINED = f"{flex.NAME}; gradient of the bias: own Triton kernel"
"""The kernel's name if the bias is trained."""


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, bias: torch.Tensor
) -> torch.Tensor:
    """Compute biased_attention.biased_causal_attention."""
    by_distance = bias.detach().float()

    def add_bias(score: torch.Tensor, _: Any, head: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        # `abs`, because FlexAttention computes masked pairs too, and their distance must be a valid index.
        return score + by_distance[head, (i - j).abs()]

    parts = [each.permute(1, 2, 0, 3) for each in (query, key, value)]
    options = {
        "score_mod": add_bias,
        "block_mask": flex.causal_block_mask(query.shape[0], str(query.device)),
        "scale": scale,
        "enable_gqa": query.shape[2] != key.shape[2],
        "kernel_options": flex.SMALL_TILES | (flex.NARROW_TILES if query.shape[-1] <= 64 else {}),
    }
    if not bias.requires_grad:
        return flex.compiled()(*parts, **options).permute(2, 0, 1, 3).flatten(2)
    out, log_sums = flex.compiled_with_sums()(*parts, **options)
    with_gradient: torch.Tensor = BiasGradient.apply(out.permute(2, 0, 1, 3), query, key, value, bias, log_sums, scale)
    return with_gradient.flatten(2)


class BiasGradient(torch.autograd.Function):
    """Passes the attention's output [S, B, heads, D] through unchanged, and computes the bias's gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        out: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor,
        log_sums: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(out, query, key, value, bias, log_sums)
        ctx.scale = scale
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Imported late: Triton is installed where FlexAttention runs, but not on every machine.
        from efficientbench.model.kernels.bias_gradient_triton import bias_gradient

        out, query, key, value, bias, log_sums = ctx.saved_tensors
        grad_bias = bias_gradient(grad_outputs[0], out, query, key, value, bias, log_sums, ctx.scale)
        return grad_outputs[0], None, None, None, grad_bias, None, None
