"""Gated DeltaNet (arXiv 2412.06464), as in Qwen3-Next and Qwen3.5: a recurrent layer that forgets what a key recalls.

Letters are those of `recurrent.py`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region
from megatron.core.transformer.spec_utils import ModuleSpec

from efficientbench.architecture.variant import Decoder
from efficientbench.model.attention.recurrent import RecurrentLayer, wide
from efficientbench.model.kernels.norm import rms_norm
from efficientbench.model.position import Position

SMALLEST_SQUARE = 1e-6
"""Added to the square of a query's or a key's length."""


class GatedDeltaNet(RecurrentLayer):
    """The layer, projections included: hidden states [S, B, H] → [S, B, H].

    Queries and keys are brought to length 1. From query, key, value, β and g the gated delta rule computes an output o
    for each value head, and

        u = W_O [norm(o_1) · silu(z_1); …]

    The norm's weight is shared by all heads. Every tensor-parallel rank has it, and the ranks sum its gradient.
    """

    decays = 0.01, 16.0

    def add_parameters(self) -> None:
        self.out_norm: torch.nn.Parameter | None = None
        if self.config.norm_weights:
            place = {"dtype": self.config.params_dtype, "device": torch.get_default_device()}
            self.out_norm = torch.nn.Parameter(torch.empty(self.widths.value_dim, **place))

    @staticmethod
    def first_bias(share: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(share)

    @staticmethod
    def activation(gate: torch.Tensor) -> torch.Tensor:
        """Return what the gates z multiply."""
        return F.silu(gate)

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
        query = _of_length_1(query) / math.sqrt(query.shape[-1])
        out = self.recall(query, _of_length_1(key), value, decay, *strengths)
        weight = self.out_norm
        if weight is not None:
            weight = copy_to_tensor_model_parallel_region(weight, group=self.tp_group)
        normed = rms_norm(out, weight, self.config.layernorm_epsilon, self.config.fuse)
        return (normed * self.activation(gate)).flatten(2)


def _of_length_1(x: torch.Tensor) -> torch.Tensor:
    """Bring queries or keys [..., K] to length 1."""
    x = wide(x)
    return x * (x.square().sum(dim=-1, keepdim=True) + SMALLEST_SQUARE).rsqrt()


def spec(model: Decoder, position: Position) -> ModuleSpec:
    """Return the ModuleSpec of the layer, projections included; it has no positional encoding."""
    return ModuleSpec(module=GatedDeltaNet, params={"widths": model.attention})
