"""The short convolution of recurrent layers: each channel's latest inputs, weighted by themselves, then SiLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def short_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    before: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return silu(bias + Σ_j weight_{c − 1 − j} · x_{t − j}) over the c latest tokens.

    Args:
        x: [S, B, D]
        weight: [D, c], the latest token's last.
        bias: [D]; None: zeros.
        before: [c − 1, B, D], the tokens before the first; None: zeros.
        positions: [S, B], each token's position in its document, behind which it does not see; None: one document.

    Returns:
        [S, B, D]
    """
    taps = weight.shape[1]
    joined = F.pad(x, (0, 0, 0, 0, taps - 1, 0)) if before is None else torch.cat([before, x])
    latest = joined[taps - 1 :]
    out = latest * weight[:, -1] if bias is None else torch.addcmul(bias, latest, weight[:, -1])
    for back in range(1, taps):
        earlier = joined[taps - 1 - back : len(joined) - back]
        if positions is not None:
            earlier = earlier.masked_fill((positions < back)[..., None], 0.0)
        out = torch.addcmul(out, earlier, weight[:, -1 - back])
    return F.silu(out)
