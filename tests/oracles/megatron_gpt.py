"""Megatron-core's own GPTModel with the weights of one of ours: its torch attention, masks, rotation, norms and gate.

Its linear layers are those that ours has. It asks for CUDA by name; here it gets the CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer import TransformerConfig
from torch.overrides import TorchFunctionMode

from efficientbench.architecture.gqa import GQAConfig
from efficientbench.architecture.model import ModelConfig


class Redirected(TorchFunctionMode):
    """Makes on the CPU what is asked for on CUDA."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {key: "cpu" if each == "cuda" else each for key, each in (kwargs or {}).items()}
        return function(*args, **kwargs)


@contextlib.contextmanager
def on_the_cpu() -> Iterator[None]:
    """Let Megatron's code find the CPU where it looks for the current GPU, and no random state of one."""
    place = mock.patch.object(torch.cuda, "current_device", return_value=torch.device("cpu"))
    forked = mock.patch.object(CudaRNGStatesTracker, "fork", return_value=contextlib.nullcontext())
    # Megatron compiles the gate, which takes longer than all else.
    with place, forked, Redirected(), torch.compiler.set_stance("force_eager"):
        yield


class MegatronGPT(GPTModel):
    """The model, from tokens [B, S] to logits [B, S, V]."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with on_the_cpu():
            logits: torch.Tensor = super().forward(tokens, position_ids=None, attention_mask=None)
            return logits


def same_weights(tensors: dict[str, torch.Tensor], model: ModelConfig) -> MegatronGPT:
    """A float32 GPTModel whose weights are `tensors`, by our global names; one base of RoPE, sinks in all layers."""
    views = [model.views[name] for name in model.layer_kinds]
    bases = {view.position.rope_base for view in views} - {None}
    with on_the_cpu():
        oracle = MegatronGPT(
            _config(model, views),
            get_gpt_layer_local_spec(qk_layernorm=model.qk_norm, normalization="RMSNorm"),
            vocab_size=model.vocab_size,
            max_sequence_length=64,
            share_embeddings_and_output_weights=True,
            position_embedding_type="rope" if bases else "none",
            rotary_base=bases.pop() if bases else 1,
            rotary_percent=model.rotated_dim / model.head_dim,
        )
    assert not bases
    missing, unexpected = oracle.load_state_dict(renamed(tensors, model), strict=False)
    assert not unexpected
    assert all(name.endswith("_extra_state") for name in missing), missing
    oracle.embedding.register_forward_hook(lambda module, inputs, embedded: embedded * model.embedding_multiplier)
    return oracle


def _config(model: ModelConfig, views: list[ModelConfig]) -> TransformerConfig:
    attentions = [view.attention for view in views if isinstance(view.attention, GQAConfig)]
    windows, nope = [each.window for each in attentions], [view.position.rope_base is None for view in views]
    [sinks] = {bool(each.sinks) for each in attentions}
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.heads,
        num_query_groups=model.key_value_heads,
        kv_channels=model.head_dim,
        add_bias_linear=False,
        add_qkv_bias=attentions[0].qkv_bias,
        attention_output_gate=bool(attentions[0].gate),
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_epsilon,
        qk_layernorm=model.qk_norm,
        softmax_type="learnable" if sinks else "vanilla",
        # The keys before a query's own.
        window_size=(max(window or 0 for window in windows) - 1, 0) if any(windows) else None,
        window_attn_skip_freq=[int(window is not None) for window in windows],
        no_rope_freq=[int(each) for each in nope] if any(nope) and not all(nope) else None,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
    )


def renamed(tensors: dict[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
    """Full tensors by our global names (weights or gradients) → the same tensors by that model's names."""
    gated = isinstance(model.attention, GQAConfig) and model.attention.gate
    queries = model.heads // model.key_value_heads
    found = {}
    for name, tensor in tensors.items():
        if "linear_qkv" in name:
            # The rotated dimensions come first here.
            together = tensor.unflatten(0, (model.key_value_heads, -1, model.head_dim))
            query, gate, key, value = together.split([queries, queries if gated else 0, 1, 1], dim=1)
            query, key = (each.roll(model.rotated_dim, dims=2) for each in (query, key))
            tensor = torch.cat([query, gate, key, value], dim=1).flatten(0, 2)
        elif name.endswith(("q_layernorm.weight", "k_layernorm.weight")):
            tensor = tensor.roll(model.rotated_dim)
        found[name.replace("core_attention.sinks", "core_attention.softmax_offset")] = tensor
    return found
