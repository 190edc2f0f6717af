"""Quantized weights by their definition, value by value in float64, and products with them."""

from __future__ import annotations

import torch

from efficientbench.model.kernels.quantized import rounded


def dequantized(
    weight: torch.Tensor, bits: int, group: int | None = None, symmetric: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight [O, I] that a quantized one stands for, and the most by which each value may differ from it.

    Half a scale, and what a scale and an offset lose by being rounded to the weight's dtype.
    """
    outputs, inputs = weight.shape
    size = group or inputs
    missing = -inputs % size
    wide = torch.nn.functional.pad(weight, (0, missing)).double()
    parts = wide.view(outputs, -1, size)
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    levels = 2**bits - 1
    exact = (2 * torch.maximum(high, -low) if symmetric else high - low) / levels
    codes, scales, offsets = rounded(torch.nn.functional.pad(weight, (0, missing)), bits, group, symmetric)
    scales, offsets = scales.double(), offsets.double()
    # The scale is the exact one in the weight's dtype.
    assert ((scales - exact).abs() <= torch.finfo(weight.dtype).eps * exact + torch.finfo(weight.dtype).tiny).all()
    found = scales[..., None] * (codes.double().view(outputs, -1, size) - offsets[..., None])
    steps = 0.5 * scales + levels * (scales - exact).abs()
    # An offset is a whole number: zero is a value, and the ends move by half a scale.
    steps = steps if symmetric else 2 * steps
    assert codes.min() >= -(2 ** (bits - 1))
    assert codes.max() < 2 ** (bits - 1)
    return found.flatten(1)[:, :inputs], steps[..., None].expand_as(parts).flatten(1)[:, :inputs]
