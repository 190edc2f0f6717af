"""The oracle of GQA and MQA: transformers' Qwen2."""

from __future__ import annotations

from oracles.oracle import dense_attention
from oracles.qwen2 import same_weights
from oracles.qwen2 import to_qwen2 as renamed

__all__ = ["EAGER", "renamed", "same_weights"]

EAGER = {"efficientbench.model.attention.gqa.biased_causal_attention": dense_attention}
