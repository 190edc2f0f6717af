"""The decoder as its formula says, in plain torch and float64, for every key of the backbone.

x_0 = embedding · factor, normed if embedding_norm; x ← x + Attention(norm(x)); x ← x + FeedForward(norm(x));
logits = cap(norm(x) Wᵀ). norm(x) = x / √(mean(x²) + ε) [· w or 1 + w]; cap(z) = c · tanh(z / c). A layer has the keys
of its kind.
"""

from __future__ import annotations

import torch

from efficientbench.architecture.gqa import GQAConfig
from efficientbench.architecture.model import ModelConfig

Tensors = dict[str, torch.Tensor]


class PlainDecoder(torch.nn.Module):
    """GQA, with RoPE or without positions; its weights have the names and shapes of our whole model's."""

    def __init__(self, weights: Tensors, model: ModelConfig) -> None:
        super().__init__()
        self.model = model
        self.weights: Tensors = {name: torch.nn.Parameter(weight.double()) for name, weight in weights.items()}
        for name, weight in named_for_torch(self.weights).items():
            self.register_parameter(name, weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """From tokens [B, S] to logits [B, S, V]."""
        model, weights = self.model, self.weights
        embedding = weights["embedding.word_embeddings.weight"]
        x = embedding[tokens] * model.embedding_multiplier
        if model.embedding_norm:
            x = self.norm(x, "embedding_norm")
        for number, kind in enumerate(model.layer_kinds):
            layer, view = f"decoder.layers.{number}", model.views[kind]
            x = x + self.attention(self.norm(x, f"{layer}.input_layernorm"), f"{layer}.self_attention", view)
            x = x + self.feed_forward(self.norm(x, f"{layer}.pre_mlp_layernorm"), f"{layer}.mlp")
        table = embedding if model.tied else weights["output_layer.weight"]
        logits = self.norm(x, "decoder.final_layernorm") @ table.T
        if model.logit_softcap is None:
            return logits
        return model.logit_softcap * torch.tanh(logits / model.logit_softcap)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        normed = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + self.model.norm_epsilon)
        if not self.model.norm_weights:
            return normed
        return normed * (self.weights[f"{name}.weight"] + (self.model.norm_weights == "zero_centred"))

    def attention(self, x: torch.Tensor, name: str, model: ModelConfig) -> torch.Tensor:
        groups, attention = model.key_value_heads, model.attention
        assert isinstance(attention, GQAConfig)
        projected = x @ self.weights[f"{name}.linear_qkv.weight"].T
        if attention.qkv_bias:
            projected = projected + self.weights[f"{name}.linear_qkv.bias"]
        # Each group's query heads, gates, key and value lie together.
        queries = model.heads // groups
        gates = queries if attention.gate else 0
        together = projected.unflatten(-1, (groups, -1, model.head_dim)).split([queries, gates, 1, 1], dim=3)
        query, gate, key, value = (each.flatten(2, 3) for each in together)
        if model.qk_norm:
            query = self.norm(query, f"{name}.q_layernorm")
            key = self.norm(key, f"{name}.k_layernorm")
        if model.position.kind == "rope":
            query, key = (partly_rotated(each, model) for each in (query, key))
        output = []
        for head in range(model.heads):
            group = head // queries
            scores = query[:, :, head] @ key[:, :, group].transpose(1, 2) / model.head_dim**0.5
            distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
            seen = (distance >= 0) & (distance < (attention.window or x.shape[1]))
            weights = scores.masked_fill(~seen, -torch.inf).exp()
            total = weights.sum(dim=-1, keepdim=True)
            if attention.sinks:
                total = total + self.weights[f"{name}.core_attention.sinks"][head].exp()
            attended = weights / total @ value[:, :, group]
            output.append(attended * torch.sigmoid(gate[:, :, head]) if attention.gate else attended)
        return torch.cat(output, dim=-1) @ self.weights[f"{name}.linear_proj.weight"].T

    def feed_forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        moe = self.model.moe
        if moe is None:
            return self.network(x, *(self.weights[f"{name}.linear_fc{number}.weight"] for number in (1, 2)))
        chosen, experts = (x @ self.weights[f"{name}.router.weight"].T).topk(moe.top_k)
        shares = torch.zeros(*x.shape[:2], moe.experts, dtype=x.dtype).scatter(2, experts, chosen.softmax(dim=-1))
        first, second = (self.weights[f"{name}.experts.linear_fc{number}.weight"] for number in (1, 2))
        outputs = [self.network(x, first[expert], second[expert]) for expert in range(moe.experts)]
        return (torch.stack(outputs, dim=-1) * shares[:, :, None]).sum(dim=-1)

    def network(self, x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        projected = x @ first.T
        if self.model.activation == "relu2":
            activated = projected.clamp(min=0) ** 2
        else:
            gate, up = projected.chunk(2, dim=-1)
            activated = gate * torch.sigmoid(gate) * up
        return activated @ second.T


def same_weights(tensors: Tensors, model: ModelConfig) -> PlainDecoder:
    """The decoder with full tensors by our global names."""
    return PlainDecoder(tensors, model)


def renamed(tensors: Tensors, model: ModelConfig) -> Tensors:
    """Full tensors by our global names (weights or gradients) → the same tensors by the decoder's names."""
    return named_for_torch(tensors)


def named_for_torch(weights: Tensors) -> Tensors:
    """Weights by names that torch lets a module have."""
    return {name.replace(".", "/"): weight for name, weight in weights.items()}


def partly_rotated(x: torch.Tensor, model: ModelConfig) -> torch.Tensor:
    """RoPE on the last dimensions of x [B, S, heads, D], as many as the model's share of them."""
    kept = x.shape[-1] - model.rotated_dim
    return torch.cat([x[..., :kept], rotated(x[..., kept:], model.position.base)], dim=-1)


def rotated(x: torch.Tensor, base: float) -> torch.Tensor:
    """RoPE on x [B, S, heads, D]: dimension i and i + D / 2 turn together by position · base^(-2i / D)."""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float64) / half)
    turn = torch.polar(torch.ones(1, dtype=torch.float64), torch.outer(torch.arange(x.shape[1]).double(), frequencies))
    pairs = torch.complex(x[..., :half], x[..., half:]) * turn[:, None, :]
    return torch.cat([pairs.real, pairs.imag], dim=-1)
