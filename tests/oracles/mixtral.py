"""transformers' Mixtral with the weights of one of our mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import transformers
from oracles.qwen2 import multiply_embedding, rotation, to_qwen2
from packaging.version import Version
from transformers import MixtralConfig, MixtralForCausalLM

from efficientbench.architecture.model import ModelConfig


def to_mixtral(tensors: dict[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
    """Full tensors by our global names (weights or gradients) → the same tensors by Mixtral's names."""
    experts = {name: tensor for name, tensor in tensors.items() if "mlp.experts" in name}
    renamed = to_qwen2({name: tensor for name, tensor in tensors.items() if name not in experts}, model)
    renamed = {name.replace("mlp.router", "mlp.gate"): tensor for name, tensor in renamed.items()}
    for name, tensor in experts.items():
        name = name.replace("decoder.layers", "model.layers")
        name = name.replace("linear_fc1.weight", "gate_up_proj").replace("linear_fc2.weight", "down_proj")
        renamed[name] = tensor
    return renamed


def same_weights(tensors: dict[str, torch.Tensor], model: ModelConfig) -> MixtralForCausalLM:
    """A float32 Mixtral whose weights are `tensors`, by our global names; skips the test with transformers 4."""
    if Version(transformers.__version__).major < 5:
        pytest.skip(f"transformers {transformers.__version__} stores Mixtral's experts in another way")
    assert model.moe is not None
    config = MixtralConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.attention.query_groups,
        head_dim=model.head_dim,
        rms_norm_eps=model.norm_epsilon,
        **rotation(model.position.base),
        tie_word_embeddings=True,
        use_cache=False,
        num_experts_per_tok=model.moe.top_k,
        num_local_experts=model.moe.experts,
        attn_implementation="sdpa",
        experts_implementation="eager",
    )
    mixtral = MixtralForCausalLM(config).float()
    missing, unexpected = mixtral.load_state_dict(to_mixtral(tensors, model), strict=False)
    assert missing == ["lm_head.weight"]  # tied to the embedding
    assert not unexpected
    multiply_embedding(mixtral, model)
    return mixtral


def auxiliary_losses(
    router_logits: list[torch.Tensor],
    model: ModelConfig,
    sequences: int = 1,
    shares: Sequence[torch.Tensor] | None = None,
    probabilities: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits.softmax(dim=-1),
) -> list[torch.Tensor]:
    """Each layer's load-balancing loss E · Σ_e f_e · P_e (arXiv 2101.03961, equation 4), from logits [tokens, E].

    f_e is the share of choices that fell on expert e, P_e its mean probability over all experts. The loss is the mean
    over so many `sequences`, one after another. `shares`: each layer's f [E], where it is not that of these tokens.
    `probabilities`: of logits [tokens, E].
    """
    assert model.moe is not None
    losses = []
    for layer, logits in enumerate(router_logits):
        parts = [
            ((chosen_shares(part, model) if shares is None else shares[layer]) * probabilities(part).mean(dim=0)).sum()
            for part in logits.chunk(sequences)
        ]
        losses.append(model.moe.experts * torch.stack(parts).mean())
    return losses


def chosen_shares(logits: torch.Tensor, model: ModelConfig) -> torch.Tensor:
    """The share of choices [E] that fell on each expert, from logits [tokens, E]."""
    assert model.moe is not None
    chosen = torch.zeros_like(logits)
    for token, row in enumerate(logits):
        for expert in sorted(range(model.moe.experts), key=lambda e, row=row: -row[e].item())[: model.moe.top_k]:
            chosen[token, expert] = 1
    return chosen.mean(dim=0) / model.moe.top_k
