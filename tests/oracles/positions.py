"""transformers' Qwen2 without its rotation, under positional encodings that other code of transformers computes."""

from __future__ import annotations

import math

import torch
from oracles.qwen2 import same_weights
from transformers import GPT2Config, GPT2Model, Qwen2ForCausalLM, T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from efficientbench.architecture.model import ModelConfig
from efficientbench.architecture.positions import LearnableAbsoluteConfig, RelativeConfig, RopeConfig


class NoRotation(torch.nn.Module):
    """In the place of Qwen2's rotary embedding: angles of zero."""

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ones = x.new_ones(1, x.shape[1], 1)
        return ones, torch.zeros_like(ones)


class Oracle(torch.nn.Module):
    """Qwen2's layers with the positional encoding of a configuration of ours; `table` is what the encoding trains."""

    def __init__(self, tensors: dict[str, torch.Tensor], model: ModelConfig) -> None:
        super().__init__()
        self.model, self.table = model, None
        tensors = dict(tensors)
        table = tensors.pop("position_table", None)
        # The factor is on the sum of embedding and positions, which `forward` makes.
        bare = model.model_copy(update={"position": RopeConfig(), "embedding_multiplier": 1.0})
        self.qwen2: Qwen2ForCausalLM = same_weights(tensors, bare)
        if model.position.kind != "rope":
            self.qwen2.model.rotary_emb = NoRotation()
        if isinstance(model.position, LearnableAbsoluteConfig):
            self.gpt2 = gpt2_without_layers(model.position.max_seq_len, model.hidden_size)
            self.table = self.gpt2.wpe.weight
        elif isinstance(model.position, RelativeConfig):
            self.t5 = t5_attention(model.position, model.heads)
            self.table = self.t5.relative_attention_bias.weight
        if self.table is not None:
            assert table is not None
            self.table.data.copy_(table)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """From tokens [B, S] to logits [B, S, V]."""
        embedded, sequence = self.qwen2.model.embed_tokens(tokens), tokens.shape[1]
        mask = embedded.new_full((sequence, sequence), -torch.inf).triu(1)[None, None]
        kind = self.model.position.kind
        if kind == "absolute":
            embedded = embedded + self.model.init_std * sinusoids(sequence, self.model.hidden_size)
        elif kind == "learnable_absolute":
            embedded = self.gpt2(inputs_embeds=embedded).last_hidden_state
        elif kind == "relative":
            mask = mask + self.t5.compute_bias(sequence, sequence)
        elif kind == "alibi":
            # Bloom's is by the key's position: from ours it differs by what the softmax does not see.
            mask = mask + build_alibi_tensor(torch.ones(1, sequence), self.model.heads, torch.float32)[None]
        embedded = embedded * self.model.embedding_multiplier
        return self.qwen2(inputs_embeds=embedded, attention_mask=mask.expand(len(tokens), -1, -1, -1)).logits


def sinusoids(sequence: int, width: int) -> torch.Tensor:
    """Section 3.5 of arXiv 1706.03762, number by number."""
    return torch.tensor(
        [
            [
                (math.cos if column % 2 else math.sin)(position / 10000 ** ((column - column % 2) / width))
                for column in range(width)
            ]
            for position in range(sequence)
        ]
    )


def gpt2_without_layers(rows: int, width: int) -> GPT2Model:
    """What GPT-2 does with embedded tokens before its first layer."""
    gpt2 = GPT2Model(GPT2Config(vocab_size=1, n_positions=rows, n_embd=width, n_layer=0, n_head=1, embd_pdrop=0.0))
    gpt2.ln_f = torch.nn.Identity()
    return gpt2


def t5_attention(relative: RelativeConfig, heads: int) -> T5Attention:
    """A decoder's attention of T5, for its bias."""
    config = T5Config(
        num_heads=heads,
        relative_attention_num_buckets=relative.buckets,
        relative_attention_max_distance=relative.max_distance,
        is_decoder=True,
    )
    return T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
