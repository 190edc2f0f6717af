"""Kimi Delta Attention (arXiv 2510.26692), as in Kimi Linear: Gated DeltaNet with a decay for each channel of a key.

Letters are those of `recurrent.py`; each head has one key and one value.
"""

from __future__ import annotations

import torch
from megatron.core.transformer.spec_utils import ModuleSpec

from efficientbench.architecture.variant import Decoder
from efficientbench.model.attention.gdn import GatedDeltaNet
from efficientbench.model.attention.recurrent import RecurrentLayer, parted
from efficientbench.model.layers import column_parallel, replicated
from efficientbench.model.position import Position


class KimiDeltaAttention(GatedDeltaNet):
    """The layer, projections included: hidden states [S, B, H] → [S, B, H].

    Steps a [S, B, G, K] and gates z come from projections of small rank: a = W_a V_a x, z = W_z V_z x, with V [K, H].
    A is one for each head, dt_bias one for each channel, and

        u = W_O [norm(o_1) · sigmoid(z_1); …]

    Every tensor-parallel rank has V_a and V_z in full.
    """

    decays = 1.0, 16.0
    projects_gates = False

    def add_parameters(self) -> None:
        super().add_parameters()
        config, widths, rank = self.config, self.widths, self.widths.key_dim
        self.linear_low = replicated(config, config.hidden_size, 2 * rank)
        self.linear_decay = column_parallel(config, rank, widths.heads * rank, self.tp_group)
        self.linear_gate = column_parallel(config, rank, widths.outputs, self.tp_group)

    first_bias = staticmethod(RecurrentLayer.first_bias)

    @staticmethod
    def activation(gate: torch.Tensor) -> torch.Tensor:
        return gate.sigmoid()

    def project(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        decay, gate = self.linear_low(hidden_states).chunk(2, dim=-1)
        return *super().project(hidden_states), self.linear_decay(decay)[0], self.linear_gate(gate)[0]

    def split(self, *projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], torch.Tensor]:
        mixed, decay, gate = projected
        convolved, strength = parted(mixed, self.groups).split(self.parts, dim=3)
        return convolved.flatten(2), parted(gate, self.groups), [strength.flatten(2)], parted(decay, self.groups)


def spec(model: Decoder, position: Position) -> ModuleSpec:
    """Return the ModuleSpec of the layer, projections included; it has no positional encoding."""
    return ModuleSpec(module=KimiDeltaAttention, params={"widths": model.attention})
