"""The layers of one pipeline stage, as the ModuleSpecs that Megatron builds them from."""

from __future__ import annotations

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from efficientbench.config.schema import RunConfig
from efficientbench.model import moe
from efficientbench.model.attention import attention_spec
from efficientbench.model.layers import RMSNorm, feed_forward_spec
from efficientbench.model.position import Position


def block_spec(config: RunConfig, position: Position) -> TransformerBlockSubmodules:
    """Return the layers of one (virtual) pipeline stage, all alike, and the norm after the last stage."""
    model, parallel = config.model, config.parallel
    layer = ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=RMSNorm,
            self_attention=attention_spec(model, position),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RMSNorm,
            mlp=moe.spec() if model.moe else feed_forward_spec(),
            mlp_bda=get_bias_dropout_add,
        ),
    )
    layers = model.layers // (parallel.pp * parallel.vpp)
    return TransformerBlockSubmodules(layer_specs=[layer] * layers, layer_norm=RMSNorm)
