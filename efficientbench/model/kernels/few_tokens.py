"""Products of a few tokens with a weight, as a decoding step computes them.

I = inputs, O = outputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

MOST = 8
"""Tokens up to which the CPU multiplies the weight by them faster than them by the weight, in float32."""


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x [..., I] · weightᵀ [I, O] + bias [O] → [..., O]."""
    tokens = x.shape[:-1].numel()
    if x.device.type != "cpu" or x.dtype != torch.float32 or tokens > MOST:
        return F.linear(x, weight, bias)
    rows = x.reshape(tokens, x.shape[-1])
    # A single one would be computed in one thread.
    columns = (F.pad(rows, (0, 0, 0, 1)) if tokens == 1 else rows).t()
    output = torch.mm(weight, columns)[:, :tokens].t().contiguous().view(*x.shape[:-1], len(weight))
    return output if bias is None else output + bias
