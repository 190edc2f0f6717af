"""Which kernels compute a model, where several give the same numbers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from efficientbench.config.part import Part, PositiveInt


class KernelsConfig(Part):
    """Switches between kernels that are exact alike; the defaults are the fastest."""

    attention: Literal["auto", "flash", "cudnn", "efficient", "flex", "te", "math"] = Field(
        default="auto",
        description="causal attention without a bias: flash, cudnn, efficient or math of torch's "
        "scaled_dot_product_attention, flex (FlexAttention), te (Transformer Engine); auto: on NVIDIA GPUs the "
        "fastest of them by a measurement before the first step, elsewhere the device's own",
    )
    fused: bool | None = Field(
        default=None,
        description="norm, rotation, SwiGLU and loss compiled by torch.compile, each into one kernel or a few; unset: "
        "where Triton serves the device",
    )
    loss_block_logits: PositiveInt | None = Field(
        default=None,
        description="logits that the loss holds at once; unset: 2^24, or 2^28 where it is fused",
    )

    @property
    def loss_block(self) -> int:
        """Logits in one block of the loss."""
        if self.loss_block_logits is not None:
            return self.loss_block_logits
        return 2**28 if self.fused else 2**24
