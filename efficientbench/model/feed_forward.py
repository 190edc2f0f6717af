"""The dense feed-forward layer."""

from __future__ import annotations

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec

from efficientbench.model.kernels.swiglu import swiglu


class SwiGLUFeedForward(MLP):
    """megatron's MLP with the activation that keeps least for the backward pass."""

    def forward(
        self, hidden_states: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states [S, B, H] → output [S, B, H] and no bias."""
        gate_up, _ = self.linear_fc1(hidden_states)
        return self.linear_fc2(swiglu(gate_up, self.config.fuse))


def spec() -> ModuleSpec:
    """ModuleSpec of the layer, projections included."""
    return ModuleSpec(
        module=SwiGLUFeedForward,
        submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
    )
