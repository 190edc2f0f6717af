"""Mamba-2 (arXiv 2405.21060), as in Bamba, Nemotron-H and Granite 4: a recurrent layer whose step is learned.

Letters are those of `recurrent.py`. The paper's names: queries are C, keys B, values x, key heads groups.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from megatron.core.transformer.spec_utils import ModuleSpec

from efficientbench.architecture.variant import Decoder
from efficientbench.model.attention.recurrent import RecurrentLayer, parted, wide
from efficientbench.model.kernels.norm import rms_norm
from efficientbench.model.layers import split_parameter
from efficientbench.model.position import Position


class Mamba2(RecurrentLayer):
    """The layer, projections included: hidden states [S, B, H] → [S, B, H].

    Each value head with a state S, of the key head with query q and key k, computes of a value x

        S ← exp(g) S + k (Δ x)ᵀ,  y = Sᵀ q + D x

    and with the norm over the values of a key head together, u = W_O norm([y_1 · silu(z_1); …]).
    """

    decays = 1.0, 16.0

    def add_parameters(self) -> None:
        self.conv_bias = self._convolution(len(self.conv_weight))
        self.D = split_parameter(self.config, (self.groups * self.repeats,))
        width = self.groups * self.repeats * self.widths.value_dim
        self.out_norm = split_parameter(self.config, (width,)) if self.config.norm_weights else None

    def mix(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        gate: torch.Tensor,
        decay: torch.Tensor,
        step: torch.Tensor,
        *strengths: torch.Tensor,
    ) -> torch.Tensor:
        out = self.recall(query, key, value * step[..., None], decay, None)
        out = (out + wide(self.D)[:, None] * value).to(gate.dtype)
        gated = parted((out * F.silu(gate)).flatten(2), self.groups)
        normed = rms_norm(gated, None, self.config.layernorm_epsilon, self.config.fuse).flatten(2)
        return normed if self.out_norm is None else normed * self.out_norm


def spec(model: Decoder, position: Position) -> ModuleSpec:
    """Return the ModuleSpec of the layer, projections included; it has no positional encoding."""
    return ModuleSpec(module=Mamba2, params={"widths": model.attention})
