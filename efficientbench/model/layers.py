"""RMSNorm, linear layers that tensor parallelism splits, the dense feed-forward layer, and the transformer layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch.distributed import ProcessGroup

from efficientbench.model.engine_config import EngineConfig
from efficientbench.model.kernels.norm import rms_norm, sum_and_norm
from efficientbench.model.kernels.relu2 import relu2
from efficientbench.model.kernels.swiglu import swiglu

QUANTILES = "quantiles"
"""The attribute of a parameter with an initial law of its own, which has no weight decay: shares of the distribution,
between 0 and 1, → values."""


class RMSNorm(torch.nn.Module):
    """RMSNorm over the last dimension, with the constructor that Megatron's ModuleSpecs call.

    Megatron's own norm refuses sequence parallelism without Transformer Engine or Apex.
    """

    weight: torch.nn.Parameter | None

    def __init__(self, config: EngineConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.fuse = config.fuse
        self.zero_centred = config.norm_weights == "zero_centred"
        if not config.norm_weights:
            self.register_parameter("weight", None)
            return
        self.weight = torch.nn.Parameter(
            torch.ones(hidden_size, dtype=config.params_dtype, device=torch.get_default_device())
        )
        if self.zero_centred:
            setattr(self.weight, QUANTILES, torch.zeros_like)
        # Each rank sees only its part of the sequence; this mark lets Megatron sum the gradients over the ranks.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return x [..., H] normalized; with a residual, return x + residual and that sum normalized."""
        weight: torch.Tensor | None = self.weight
        if weight is not None and self.zero_centred:
            # The sum is in float32 or wider: beside 1, bf16 would lose most of a small number.
            weight = 1 + weight.to(torch.promote_types(weight.dtype, torch.float32))
        if residual is not None:
            return sum_and_norm(x, residual, weight, self.eps)
        return rms_norm(x, weight, self.eps, self.fuse)


def column_parallel(
    config: TransformerConfig, inputs: int, outputs: int, tp_group: ProcessGroup, bias: bool = False
) -> ColumnParallelLinear:
    """Return a linear layer whose outputs the tensor-parallel ranks split."""
    return ColumnParallelLinear(
        inputs, outputs, config=config, init_method=config.init_method, bias=bias, tp_group=tp_group
    )


def row_parallel(config: TransformerConfig, inputs: int, outputs: int, tp_group: ProcessGroup) -> RowParallelLinear:
    """Return a linear layer whose inputs the tensor-parallel ranks split; the outputs are summed over the ranks."""
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


def replicated(config: TransformerConfig, inputs: int, outputs: int) -> torch.nn.Linear:
    """Return a linear layer that every tensor-parallel rank has in full."""
    linear = torch.nn.Linear(inputs, outputs, bias=False, dtype=config.params_dtype)
    # Under sequence parallelism each rank sees its part alone; by this mark Megatron sums the gradients over the ranks.
    linear.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return linear


def split_parameter(
    config: TransformerConfig,
    shape: tuple[int, ...],
    quantiles: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.nn.Parameter:
    """Make an uninitialized parameter whose first dimension the tensor-parallel ranks split.

    Args:
        config: has its dtype.
        shape: the shape of this rank's part.
        quantiles: its initial law, as QUANTILES says; None: that of other parameters with so many dimensions.
    """
    parameter = torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype, device=torch.get_default_device()))
    set_tensor_model_parallel_attributes(parameter, is_parallel=True, dim=0, stride=1)
    if quantiles is not None:
        setattr(parameter, QUANTILES, quantiles)
    return parameter


def activate(projected: torch.Tensor, config: EngineConfig) -> torch.Tensor:
    """Return the activation [..., F] of a feed-forward layer's projection: [..., 2 · F] with a gate, else [..., F]."""
    return swiglu(projected, config.fuse) if config.gated_linear_unit else relu2(projected, config.fuse)


class FeedForward(MLP):
    """Megatron's MLP with an activation that keeps only its input for the backward pass."""

    def forward(
        self, hidden_states: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute hidden_states [S, B, H] → output [S, B, H]; the second value, the bias, is None."""
        projected, _ = self.linear_fc1(hidden_states)
        return self.linear_fc2(activate(projected, self.config))


def feed_forward_spec() -> ModuleSpec:
    """Return the ModuleSpec of the dense feed-forward layer, projections included."""
    return ModuleSpec(
        module=FeedForward,
        submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
    )


class Layer(TransformerLayer):
    """Megatron's transformer layer; in evaluation and with fused kernels it calls its parts directly.

    With fused kernels the second norm also adds the attention's output to the residual. The addition is in the call of
    the norm's module, because Megatron waits there for the weight.
    """

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: None = None, **others: object
    ) -> tuple[torch.Tensor, None]:
        """Compute hidden_states [S, B, H] → the same shape; the second value, Megatron's context, is None.

        `others`: arguments of Megatron's block. Only Megatron's own forward pass uses them, but for the documents.
        """
        trains = self.training or torch.is_grad_enabled()
        if trains and not self.config.fuse:
            return super().forward(hidden_states, attention_mask, **others)
        documents = others.get("packed_seq_params")
        normed = self.input_layernorm(hidden_states)
        attended = self.self_attention(normed, attention_mask=None, packed_seq_params=documents)
        if trains:
            hidden_states, normed = self.pre_mlp_layernorm(_with_bias(*attended), hidden_states)
            return hidden_states + _with_bias(*self.mlp(normed)), None
        hidden_states = _add(attended, hidden_states)
        return _add(self.mlp(self.pre_mlp_layernorm(hidden_states)), hidden_states), None


def _add(part: tuple[torch.Tensor, torch.Tensor | None], residual: torch.Tensor) -> torch.Tensor:
    """Return output + bias + residual [S, B, H]; without a bias the sum overwrites the output."""
    return _with_bias(*part).add_(residual)


def _with_bias(output: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return output if bias is None else output + bias
