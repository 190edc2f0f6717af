"""Formulas for one layer of Native Sparse Attention (arXiv 2502.11089), without torch.

D = head dimension; l, d, l', n, w = compress_block, compress_stride, select_block, select_count, window of the
configuration; φ = the network that compresses l keys or values to one.
"""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.config.model import ModelConfig, NSAConfig

BRANCHES = 3


@dataclass(frozen=True)
class Keys:
    """Numbers of keys by branch."""

    compressed: int
    selected: int
    window: int

    @property
    def total(self) -> int:
        return self.compressed + self.selected + self.window


def _nsa(model: ModelConfig) -> NSAConfig:
    assert isinstance(model.attention, NSAConfig)
    return model.attention


def _compressed_keys(nsa: NSAConfig, seq_len: int) -> int:
    """Count the compressed keys whose blocks lie within the first `seq_len` tokens."""
    return max((seq_len - nsa.compress_block) // nsa.compress_stride + 1, 0)


def keys_in_sight(nsa: NSAConfig, seq_len: int) -> Keys:
    """Count the keys that the masks show to the queries of a sequence, summed over the queries.

    In its own block a query sees no later token.
    """
    block, count = nsa.select_block, nsa.select_count
    return Keys(
        compressed=sum(_compressed_keys(nsa, length) for length in range(1, seq_len + 1)),
        selected=sum(min(length, (count - 1) * block + (length - 1) % block + 1) for length in range(1, seq_len + 1)),
        window=sum(min(length, nsa.window) for length in range(1, seq_len + 1)),
    )


def keys_read(nsa: NSAConfig, seq_len: int) -> Keys:
    """Count the keys that the queries of a sequence read, summed: they read selected blocks whole."""
    sight = keys_in_sight(nsa, seq_len)
    blocks = (min((query // nsa.select_block) + 1, nsa.select_count) for query in range(seq_len))
    return Keys(sight.compressed, sum(blocks) * nsa.select_block, sight.window)


def keys_of_last_query(nsa: NSAConfig, seq_len: int) -> Keys:
    """Count the keys that the last query of a sequence reads."""
    blocks = -(-seq_len // nsa.select_block)
    return Keys(
        compressed=_compressed_keys(nsa, seq_len),
        selected=min(blocks, nsa.select_count) * nsa.select_block,
        window=min(nsa.window, seq_len),
    )


def keys_read_per_query(model: ModelConfig, seq_len: int) -> float:
    """Return the mean number of keys that a query of a sequence reads."""
    return keys_read(_nsa(model), seq_len).total / seq_len


def _qkv(model: ModelConfig) -> int:
    return (model.heads + 2 * BRANCHES * _nsa(model).query_groups) * model.head_dim


def _projections(model: ModelConfig) -> int:
    """Count the weights of the projections to queries, keys, values and gates, and to the output."""
    return model.hidden_size * (_qkv(model) + BRANCHES * model.heads + model.heads * model.head_dim)


def _compression_weights(model: ModelConfig) -> int:
    """Count the weights of one φ: l · D → D → D."""
    return (_nsa(model).compress_block + 1) * model.head_dim**2


def compression_parameters(model: ModelConfig) -> int:
    """Count φ of keys and φ of values with their positions, which each tensor-parallel rank holds whole."""
    return 2 * (_compression_weights(model) + _nsa(model).compress_block * model.head_dim)


def parameters(model: ModelConfig) -> int:
    """Count the parameters of a layer."""
    bias = _qkv(model) if _nsa(model).qkv_bias else 0
    return _projections(model) + bias + compression_parameters(model)


def projection_flops(model: ModelConfig) -> int:
    """Count forward FLOPs per token in the projections."""
    return 2 * _projections(model)


def _compression_flops(model: ModelConfig, seq_len: int) -> int:
    """Count forward FLOPs per token in φ."""
    nsa = _nsa(model)
    blocks = max(_compressed_keys(nsa, seq_len), 1)
    return 2 * blocks * nsa.query_groups * 2 * _compression_weights(model) // seq_len


def score_flops_full_square(model: ModelConfig, seq_len: int) -> int:
    """Count forward FLOPs per token in φ, scores and their product with the values over the full square.

    Every query then reads as many keys as the last one.
    """
    keys = keys_of_last_query(_nsa(model), seq_len).total
    return 4 * model.heads * model.head_dim * keys + _compression_flops(model, seq_len)


def score_flops(model: ModelConfig, seq_len: int) -> int:
    """Count forward FLOPs per token in φ, scores and their product with the values, over the keys in sight."""
    keys = keys_in_sight(_nsa(model), seq_len).total
    return 4 * model.heads * model.head_dim * keys // seq_len + _compression_flops(model, seq_len)


def cached(model: ModelConfig) -> int:
    """Count the elements by which decoding's cache grows with each token.

    The selected branch adds a key and a value for each token, the compressed branch one of each for d tokens. The
    window and the tokens of unfinished compressed blocks do not grow.
    """
    nsa = _nsa(model)
    return 2 * nsa.query_groups * model.head_dim * (nsa.compress_stride + 1) // nsa.compress_stride


def saved(model: ModelConfig, tp: int) -> int:
    """Count the elements per token that one rank keeps from forward to backward, without the layer's input.

    Per head: rotated query, output of each branch, their gated sum, gates. Per group: keys and values of two branches;
    for the third the input blocks of φ, which overlap, its inner activations and its result; indices of selected
    blocks.
    """
    nsa, dim = _nsa(model), model.head_dim
    compression = 2 * dim * (nsa.compress_block + 3) // nsa.compress_stride
    per_head = (2 + BRANCHES) * dim + BRANCHES
    per_group = 4 * dim + compression + 4 * nsa.select_count
    return model.heads // tp * per_head + nsa.query_groups // tp * per_group


def recomputed(model: ModelConfig, tp: int) -> int:
    """Count the elements of `saved` that selective recomputation computes again: branch outputs and block indices."""
    nsa = _nsa(model)
    return model.heads // tp * BRANCHES * model.head_dim + nsa.query_groups // tp * 4 * nsa.select_count
