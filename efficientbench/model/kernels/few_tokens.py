"""Products of a few tokens with a weight, as in a decoding step.

I = inputs, O = outputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

MOST = 8
"""Most tokens for which weight · tokensᵀ is faster on a CPU than tokens · weightᵀ, in float32."""


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x [..., I] · weightᵀ [I, O] + bias [O] → [..., O]."""
    tokens = x.shape[:-1].numel()
    if x.device.type != "cpu" or x.dtype != torch.float32 or tokens > MOST:
        return F.linear(x, weight, bias)
    rows = x.reshape(tokens, x.shape[-1])
    # A single column would be computed in one thread.
    columns = (F.pad(rows, (0, 0, 0, 1)) if tokens == 1 else rows).t()
    output = torch.mm(weight, columns)[:, :tokens].t().contiguous().view(*x.shape[:-1], len(weight))
    return output if bias is None else output + bias
