"""megatron's TransformerConfig with what it does not know: which kernels serve our modules."""

from __future__ import annotations

from dataclasses import dataclass, field

from megatron.core.transformer import TransformerConfig

from efficientbench.model.kernels.attention_choice import DEFAULT, AttentionKernel
from efficientbench.model.kernels.cross_entropy import LossKernel


@dataclass
class EngineConfig(TransformerConfig):
    """What every module of a stage is built from."""

    fuse: bool = False
    """Norm, rotation and SwiGLU by compiled kernels."""
    attention_kernel: AttentionKernel = DEFAULT
    """Of causal attention without a bias."""
    loss_kernel: LossKernel = field(default_factory=LossKernel)
