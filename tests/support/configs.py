"""Small configurations that keep the structure of the real ones."""

from __future__ import annotations

from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig

TINY = [
    "model.layers=2",
    "model.hidden_size=48",
    "model.heads=4",
    "model.head_dim=12",
    "model.ffn_hidden_size=80",
    "model.vocab_size=131",
    "training.seq_len=16",
    "training.micro_batch_size=2",
    "training.global_batch_size=8",
    "training.dtype=fp32",
    "training.steps=10",
    # By itself AdamW's first update follows the signs of gradients, also of those that are rounding alone.
    "training.epsilon=1e-3",
    "measurement.warmup_steps=0",
    "parallel.dp=1",
    # Several buckets even here: gradients of one are sent while others are computed.
    "parallel.bucket_size=5000",
]

TINY_VARIANTS = {
    "nsa": [
        "model.attention.compress_block=4",
        "model.attention.compress_stride=2",
        "model.attention.select_block=8",
        "model.attention.select_count=4",
        "model.attention.window=12",
        "training.seq_len=64",
    ],
    # As many groups as heads.
    "nanochat": ["model.attention.query_groups=4"],
}
"""Overrides by variant. NSA's blocks have the paper's ratios, and a query reads only a part of the sequence."""

BACKBONE = [
    "model.embedding_norm=true",
    "model.qk_norm=true",
    "model.activation=relu2",
    "model.tied=false",
    "model.logit_softcap=3",
]
"""Every key of the backbone that a published model sets, but for norms without weights, which hide their gradients."""


def tiny(name: str, *overrides: str) -> RunConfig:
    """Return the run called `name` with shapes that take milliseconds."""
    return resolve(name, smoke=True, overrides=[*TINY, *TINY_VARIANTS.get(name.partition("_")[0], []), *overrides])
