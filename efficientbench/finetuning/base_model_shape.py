"""The shape of the tiny model, by the keys of transformers' Qwen2Config."""

from __future__ import annotations

from typing import Any

TINY_SHAPE: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 1024,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    # Its initial weights leave logits of a normal model's size at this width.
    "initializer_range": 0.06,
}
