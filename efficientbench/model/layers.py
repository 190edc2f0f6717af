"""The norm, linear layers that tensor parallelism splits, and the dense feed-forward layer."""

from __future__ import annotations

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from torch.distributed import ProcessGroup

from efficientbench.model.engine_config import EngineConfig
from efficientbench.model.kernels.norm import rms_norm
from efficientbench.model.kernels.relu2 import relu2
from efficientbench.model.kernels.swiglu import swiglu


class RMSNorm(torch.nn.Module):
    """RMSNorm over the last dimension, with the constructor that Megatron's ModuleSpecs call.

    Megatron's own norm refuses sequence parallelism without Transformer Engine or Apex.
    """

    weight: torch.nn.Parameter | None

    def __init__(self, config: EngineConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.fuse = config.fuse
        if not config.norm_weights:
            self.register_parameter("weight", None)
            return
        self.weight = torch.nn.Parameter(
            torch.ones(hidden_size, dtype=config.params_dtype, device=torch.get_default_device())
        )
        # Each rank sees only its part of the sequence: Megatron sums gradients of parameters marked so.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize x [..., H]; the same shape comes back."""
        return rms_norm(x, self.weight, self.eps, self.fuse)


def column_parallel(
    config: TransformerConfig, inputs: int, outputs: int, tp_group: ProcessGroup, bias: bool = False
) -> ColumnParallelLinear:
    """Return a linear layer of which each tensor-parallel rank has some outputs."""
    return ColumnParallelLinear(
        inputs, outputs, config=config, init_method=config.init_method, bias=bias, tp_group=tp_group
    )


def row_parallel(config: TransformerConfig, inputs: int, outputs: int, tp_group: ProcessGroup) -> RowParallelLinear:
    """Return a linear layer of which each tensor-parallel rank has some inputs; the outputs are summed over ranks."""
    return RowParallelLinear(
        inputs,
        outputs,
        config=config,
        init_method=config.output_layer_init_method,
        bias=False,
        input_is_parallel=True,
        skip_bias_add=True,
        tp_group=tp_group,
    )


def activate(projected: torch.Tensor, config: EngineConfig) -> torch.Tensor:
    """Return the activation [..., F] of what a feed-forward layer projects: [..., 2 · F] with a gate, else [..., F]."""
    return swiglu(projected, config.fuse) if config.gated_linear_unit else relu2(projected, config.fuse)


class FeedForward(MLP):
    """Megatron's MLP with an activation that keeps only its input for the backward pass."""

    def forward(
        self, hidden_states: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states [S, B, H] → output [S, B, H] and no bias."""
        projected, _ = self.linear_fc1(hidden_states)
        return self.linear_fc2(activate(projected, self.config))


def feed_forward_spec() -> ModuleSpec:
    """Return the ModuleSpec of the dense layer, projections included."""
    return ModuleSpec(
        module=FeedForward,
        submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
    )
