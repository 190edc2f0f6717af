"""Megatron's TransformerConfig of a run: the model, its layout over ranks, and its kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from megatron.core.activations import squared_relu
from megatron.core.transformer import TransformerConfig

from efficientbench.architecture.backbone import NormWeights
from efficientbench.config.schema import RunConfig
from efficientbench.model.kernels import TORCH_DTYPES
from efficientbench.model.kernels.causal_attention import AttentionKernel, causal_attention
from efficientbench.model.kernels.cross_entropy import LossKernel


@dataclass
class EngineConfig(TransformerConfig):
    """Megatron's TransformerConfig with the kernels of our modules; every module of a stage is built from it."""

    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    fuse: bool = False
    """Whether compiled kernels compute norm, rotation and activation."""
    norm_weights: NormWeights = True
    """Whether norms have a trained vector, and whether 1 is added to it."""
    attention_kernel: AttentionKernel = causal_attention
    """The kernel of causal attention without a bias."""
    loss_kernel: LossKernel = field(default_factory=LossKernel)
    """The kernel of the loss."""
    last_shares: bool = False
    """Whether the auxiliary loss takes each expert's share of the choices from the step before."""
    bias_rate: float | None = None
    """The amount by which a step moves the bias that balances experts; None: there is no bias."""
    of_layers: tuple[EngineConfig, ...] = ()
    """The configuration of each layer's kind, from the first layer of the model; empty where layers are alike."""

    def get_config_for_layer(self, layer_number: int) -> EngineConfig:
        """Return the configuration of a layer, counted from 1, where layers are of several kinds."""
        return self.of_layers[layer_number - 1]


def transformer_config(config: RunConfig, attention_kernel: AttentionKernel = causal_attention) -> EngineConfig:
    """Return the configuration of a run's model, its layout over ranks and its kernels."""
    model, parallel, experts = config.model, config.parallel, config.model.moe
    auxiliary_factor = experts.balancing(config.training.objective) if experts else 0.0
    over, recompute = experts.auxiliary_over if experts else None, config.training.recompute
    shared = experts.shared_experts if experts else None
    return EngineConfig(
        num_layers=model.layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.heads,
        num_query_groups=model.key_value_heads,
        kv_channels=model.head_dim,
        ffn_hidden_size=model.ffn_hidden_size,
        add_bias_linear=False,
        add_qkv_bias=model.attention.engine_qkv_bias,
        attention_output_gate=model.attention.engine_output_gate,
        gated_linear_unit=model.activation == "swiglu",
        activation_func=F.silu if model.activation == "swiglu" else squared_relu,
        normalization="RMSNorm",
        # Megatron then sums the gradients of these norms over the tensor-parallel ranks, which split the heads.
        qk_layernorm=model.qk_norm,
        layernorm_epsilon=model.norm_epsilon,
        # Megatron's own initial weights depend on the layout: initial_weights.py draws them instead. Not by
        # perform_initialization=False, which would also leave parameters unmarked as tensor-parallel.
        init_method=_leave,
        output_layer_init_method=_leave,
        # Linear layers add weight gradients to float32 buffers in the matmul itself: see megatron_patches.py.
        gradient_accumulation_fusion=True,
        params_dtype=TORCH_DTYPES[config.training.dtype],
        pipeline_dtype=TORCH_DTYPES[config.training.dtype],
        bf16=config.training.dtype == "bf16",
        fp16=config.training.dtype == "fp16",
        tensor_model_parallel_size=parallel.tp,
        sequence_parallel=parallel.sp,
        context_parallel_size=parallel.cp,
        recompute_granularity=None if recompute == "none" else recompute,
        recompute_method="uniform" if recompute == "full" else None,
        recompute_num_layers=1 if recompute == "full" else None,
        pipeline_model_parallel_size=parallel.pp,
        # Megatron refuses a number of ranks for experts that a layer does not have.
        expert_model_parallel_size=parallel.ep if experts else 1,
        expert_tensor_parallel_size=parallel.expert_tp,
        num_moe_experts=experts.experts if experts else None,
        moe_ffn_hidden_size=model.ffn_hidden_size if experts else None,
        moe_shared_expert_intermediate_size=shared * model.ffn_hidden_size if shared else None,
        moe_router_topk=experts.top_k if experts else 2,
        moe_router_score_function=experts.scores if experts else "softmax",
        # Otherwise Megatron takes the softmax over the chosen experts alone, whose sum is 1.
        moe_router_pre_softmax=experts is not None and not experts.normalized,
        moe_router_topk_scaling_factor=experts.scale if experts and experts.scale != 1 else None,
        moe_aux_loss_coeff=auxiliary_factor,
        moe_router_load_balancing_type="seq_aux_loss" if over == "sequence" else "aux_loss",
        # In float32, because nearly equal logits decide where a token goes.
        moe_router_dtype="fp32",
        moe_token_dispatcher_type="alltoall",
        virtual_pipeline_model_parallel_size=parallel.vpp if parallel.vpp > 1 else None,
        # Megatron's other way of sending swaps activations and gradients of two interleaved stages, without an error.
        overlap_p2p_comm=parallel.vpp > 1,
        batch_p2p_comm=False,
        # The embedding is then looked up by indexing, whose backward pass sums in a fixed order.
        deterministic_mode=config.training.deterministic,
        fuse=bool(config.kernels.fused),
        norm_weights=model.norm_weights,
        attention_kernel=attention_kernel,
        loss_kernel=LossKernel(config.kernels.loss_block, bool(config.kernels.fused)),
        last_shares=over == "global" and auxiliary_factor > 0,
        bias_rate=experts.step_of_bias(config.training.objective) if experts else None,
    )


def _leave(weight: torch.Tensor) -> torch.Tensor:
    return weight
