"""Native Sparse Attention straight from its equations (arXiv 2502.11089), with dense masks: for tests only.

Equations count tokens, compressed keys and blocks from 1; indices here are from 0. S = sequence, B = batch,
Hg = groups, G = query heads of a group, D = head dimension, C = compressed keys, K = blocks.
"""

from __future__ import annotations

import math

import torch
from oracles.qwen2 import multiply_embedding, qwen2_config, to_qwen2
from transformers import Qwen2ForCausalLM

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.nsa import NSAConfig
from efficientbench.model.kernels.nsa.choose_blocks import Choice
from efficientbench.model.kernels.nsa.reach import Reach


def compressed_mask(sequence: int, nsa: NSAConfig) -> torch.Tensor:
    """[S, C], True where the whole compressed block lies in the query's past (equation 7)."""
    count = max((sequence - nsa.compress_block) // nsa.compress_stride + 1, 0)
    last_token = torch.arange(count) * nsa.compress_stride + nsa.compress_block - 1
    return last_token[None] <= torch.arange(sequence)[:, None]


def window_mask(sequence: int, nsa: NSAConfig) -> torch.Tensor:
    """[S, S], True for the query's own token and those just before it, `window` in all."""
    distance = torch.arange(sequence)[:, None] - torch.arange(sequence)
    return (distance >= 0) & (distance < nsa.window)


def importance(probabilities: torch.Tensor, nsa: NSAConfig, blocks: int) -> torch.Tensor:
    """Equation 9: [..., C] → [..., K]. With indices from 1 the paper's j·l'/d − m − n is here j·l'/d + m − n."""
    per_block, per_key = nsa.select_block // nsa.compress_stride, nsa.compress_block // nsa.compress_stride
    scores = probabilities.new_zeros(*probabilities.shape[:-1], blocks)
    for j in range(blocks):
        for m in range(per_block):
            for n in range(per_key):
                index = per_block * j + m - n
                if 0 <= index < probabilities.shape[-1]:
                    scores[..., j] += probabilities[..., index]
    return scores


def selected_mask(probabilities: torch.Tensor, nsa: NSAConfig, sequence: int) -> torch.Tensor:
    """Equations 9 to 12: [..., Hg, G, S, C] → [..., Hg, S, S], True for visible tokens of chosen blocks."""
    blocks = math.ceil(sequence / nsa.select_block)
    scores = importance(probabilities, nsa, blocks).sum(dim=-3)
    own = torch.arange(sequence) // nsa.select_block
    for position in range(sequence):
        scores[..., position, own[position] + 1 :] = -math.inf
        for always in {0, int(own[position]), max(int(own[position]) - 1, 0)}:
            scores[..., position, always] = math.inf
    rank = scores.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    chosen = (rank < nsa.select_count) & (scores > -math.inf)
    return chosen[..., own] & torch.ones(sequence, sequence, dtype=torch.bool).tril()


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and probabilities of [..., G, S, D] over [..., 1, K, D], 0 where the mask [..., 1, S, K] hides all."""
    scores = (query @ key.transpose(-1, -2) * scale).masked_fill(~mask, -math.inf)
    probabilities = torch.where(mask.any(dim=-1, keepdim=True), scores, 0).softmax(dim=-1)
    probabilities = probabilities * mask.any(dim=-1, keepdim=True)
    return probabilities @ value, probabilities


def branches(
    query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], nsa: NSAConfig
) -> list[torch.Tensor]:
    """Outputs of the compressed, the selected and the window branch.

    query [B, Hg, G, S, D]; keys and values of the three branches [B, Hg, S or C, D] → three times [B, Hg, G, S, D].
    """
    sequence, scale = query.shape[-2], query.shape[-1] ** -0.5
    keys, values = ([each[:, :, None] for each in list_] for list_ in (keys, values))
    compressed, probabilities = attend(query, keys[0], values[0], compressed_mask(sequence, nsa), scale)
    chosen = selected_mask(probabilities.detach(), nsa, sequence)[:, :, None]
    selected, _ = attend(query, keys[1], values[1], chosen, scale)
    window, _ = attend(query, keys[2], values[2], window_mask(sequence, nsa), scale)
    return [compressed, selected, window]


class DenseNSA(torch.nn.Module):
    """A whole attention layer, with the weights of one of ours by our names."""

    def __init__(self, weights: dict[str, torch.Tensor], model: ModelConfig) -> None:
        super().__init__()
        assert isinstance(model.attention, NSAConfig)
        for name, tensor in weights.items():
            self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(tensor))
        self.model, self.nsa = model, model.attention

    def forward(self, hidden_states: torch.Tensor, **unused: object) -> tuple[torch.Tensor, None]:
        groups, dim = self.nsa.query_groups, self.model.head_dim
        batch, sequence, _ = hidden_states.shape
        mixed = hidden_states @ self.linear_qkv_weight.t() + self.linear_qkv_bias
        # [B, Hg, G + 6, S, D]: query heads; keys of the selected, window and compressed branch; values of the
        # compressed, selected and window branch.
        mixed = mixed.view(batch, sequence, groups, -1, dim).permute(0, 2, 3, 1, 4)
        query, keys, values = mixed.split([self.model.heads // groups, 3, 3], dim=2)
        positions = torch.arange(sequence, dtype=torch.float32)
        turned = [
            self._turn(self._compress(keys[:, :, 2], "compress_key"), positions * self.nsa.compress_stride),
            self._turn(keys[:, :, 0], positions),
            self._turn(keys[:, :, 1], positions),
        ]
        read = [self._compress(values[:, :, 0], "compress_value"), values[:, :, 1], values[:, :, 2]]
        outputs = branches(self._turn(query, positions), turned, read, self.nsa)
        gates = torch.sigmoid(hidden_states @ self.linear_gate_weight.t()).view(batch, sequence, groups, -1, 3)
        gates = gates.permute(4, 0, 2, 3, 1)[..., None]
        gated = gates[0] * outputs[0] + gates[1] * outputs[1] + gates[2] * outputs[2]
        return gated.permute(0, 3, 1, 2, 4).flatten(2) @ self.linear_proj_weight.t(), None

    def _compress(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Equation 7, one block at a time: [B, Hg, S, D] → [B, Hg, C, D]."""
        keys = []
        for start in range(0, x.shape[2] - self.nsa.compress_block + 1, self.nsa.compress_stride):
            block = x[:, :, start : start + self.nsa.compress_block] + getattr(self, f"{name}_position")
            inner = block.flatten(2) @ getattr(self, f"{name}_weight_in").t()
            keys.append(inner * torch.sigmoid(inner) @ getattr(self, f"{name}_weight_out").t())
        return torch.stack(keys, dim=2) if keys else x[:, :, :0]

    def _turn(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """RoPE: [..., S, D], rotated as complex numbers."""
        if self.model.position.kind != "rope":
            return x
        half = x.shape[-1] // 2
        frequencies = self.model.position.base ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.outer(positions[: x.shape[-2]], frequencies)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], dim=-1)


def same_weights(tensors: dict[str, torch.Tensor], model: ModelConfig) -> Qwen2ForCausalLM:
    """A Qwen2 of transformers whose attention layers are DenseNSA; full tensors by our global names."""
    qwen2 = Qwen2ForCausalLM(qwen2_config(model)).float()
    for index, layer in enumerate(qwen2.model.layers):
        prefix = f"decoder.layers.{index}.self_attention."
        layer.self_attn = DenseNSA(
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}, model
        )
    missing, unexpected = qwen2.load_state_dict(renamed(tensors, model), strict=False)
    assert missing == ["lm_head.weight"]  # tied to the embedding
    assert not unexpected
    multiply_embedding(qwen2, model)
    return qwen2


def renamed(tensors: dict[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
    """Full tensors by our global names (weights or gradients) → the same tensors by that model's names."""
    attention = {name: tensor for name, tensor in tensors.items() if ".self_attention." in name}
    found = to_qwen2({name: tensor for name, tensor in tensors.items() if name not in attention}, model)
    for name, tensor in attention.items():
        layer, _, parameter = name.removeprefix("decoder.").partition(".self_attention.")
        found[f"model.{layer}.self_attn.{parameter.replace('.', '_')}"] = tensor
    return found


def eager_range_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    reach: Reach,
    choice: Choice | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As the kernel, for counting FLOPs: every query reads as many keys as the last one, gathered for it alone."""
    sequence = query.shape[1]
    width = reach.last(sequence - 1) - reach.first(sequence - 1)
    read = torch.arange(width).expand(query.shape[0], sequence, width)
    chosen = torch.zeros(query.shape[0], sequence, choice.count, dtype=torch.long) if choice else None
    return _gathered_attention(query, key, value, read), chosen


def eager_selected_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, chosen: torch.Tensor, block_size: int, scale: float
) -> torch.Tensor:
    """As the kernel, for counting FLOPs."""
    read = (chosen[..., None] * block_size + torch.arange(block_size)).flatten(2)
    return _gathered_attention(query, key, value, read)


def _gathered_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, read: torch.Tensor
) -> torch.Tensor:
    batch = torch.arange(query.shape[0])[:, None, None]
    scores = query @ key[batch, read].transpose(-1, -2)
    return scores.softmax(dim=-1) @ value[batch, read]


EAGER = {
    "efficientbench.model.attention.nsa.range_attention": eager_range_attention,
    "efficientbench.model.attention.nsa.selected_attention": eager_selected_attention,
}
