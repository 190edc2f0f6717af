"""What a layer of Native Sparse Attention (arXiv 2502.11089) costs, as pure formulas; no torch.

S = sequence, D = head dimension; l, d, l', n, w = the configuration's compress_block, compress_stride, select_block,
select_count, window.
"""

from __future__ import annotations

from dataclasses import dataclass

from efficientbench.config.model import ModelConfig, NSAConfig

BRANCHES = 3


@dataclass(frozen=True)
class Keys:
    """Keys by branch."""

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
    """Compressed keys that lie wholly within the first `seq_len` tokens."""
    return max((seq_len - nsa.compress_block) // nsa.compress_stride + 1, 0)


def keys_in_sight(nsa: NSAConfig, seq_len: int) -> Keys:
    """Keys that the masks let all queries of a sequence attend to, added up: of its own block, a query sees no later
    token."""
    block, count = nsa.select_block, nsa.select_count
    return Keys(
        compressed=sum(_compressed_keys(nsa, length) for length in range(1, seq_len + 1)),
        selected=sum(min(length, (count - 1) * block + (length - 1) % block + 1) for length in range(1, seq_len + 1)),
        window=sum(min(length, nsa.window) for length in range(1, seq_len + 1)),
    )


def keys_read(nsa: NSAConfig, seq_len: int) -> Keys:
    """Keys that all queries of a sequence read, added up: chosen blocks are read whole."""
    sight = keys_in_sight(nsa, seq_len)
    blocks = (min((query // nsa.select_block) + 1, nsa.select_count) for query in range(seq_len))
    return Keys(sight.compressed, sum(blocks) * nsa.select_block, sight.window)


def keys_of_last_query(nsa: NSAConfig, seq_len: int) -> Keys:
    """Keys that the last query reads."""
    blocks = -(-seq_len // nsa.select_block)
    return Keys(
        compressed=_compressed_keys(nsa, seq_len),
        selected=min(blocks, nsa.select_count) * nsa.select_block,
        window=min(nsa.window, seq_len),
    )


def keys_read_per_query(model: ModelConfig, seq_len: int) -> float:
    """Mean over the queries of a sequence."""
    return keys_read(_nsa(model), seq_len).total / seq_len


def _qkv(model: ModelConfig) -> int:
    return (model.heads + 2 * BRANCHES * _nsa(model).query_groups) * model.head_dim


def _projections(model: ModelConfig) -> int:
    """Weights of the projections to queries, keys, values and gates, and to the output."""
    return model.hidden_size * (_qkv(model) + BRANCHES * model.heads + model.heads * model.head_dim)


def _compression_weights(model: ModelConfig) -> int:
    """Weights of one φ: l · D → D → D."""
    return (_nsa(model).compress_block + 1) * model.head_dim**2


def compression_parameters(model: ModelConfig) -> int:
    """φ of keys and φ of values with their positions; each tensor-parallel rank holds them whole."""
    return 2 * (_compression_weights(model) + _nsa(model).compress_block * model.head_dim)


def parameters(model: ModelConfig) -> int:
    """Parameters of a layer."""
    bias = _qkv(model) if _nsa(model).qkv_bias else 0
    return _projections(model) + bias + compression_parameters(model)


def projection_flops(model: ModelConfig) -> int:
    """Forward FLOPs per token in the projections."""
    return 2 * _projections(model)


def _compression_flops(model: ModelConfig, seq_len: int) -> int:
    """Forward FLOPs per token in φ."""
    nsa = _nsa(model)
    blocks = max(_compressed_keys(nsa, seq_len), 1)
    return 2 * blocks * nsa.query_groups * 2 * _compression_weights(model) // seq_len


def score_flops_full_square(model: ModelConfig, seq_len: int) -> int:
    """Forward FLOPs per token in φ, scores and their product with the values, if every query read what the last one
    reads: what the full square is to dense attention."""
    keys = keys_of_last_query(_nsa(model), seq_len).total
    return 4 * model.heads * model.head_dim * keys + _compression_flops(model, seq_len)


def score_flops(model: ModelConfig, seq_len: int) -> int:
    """The same over the keys that each query can see: the work that has to be done."""
    keys = keys_in_sight(_nsa(model), seq_len).total
    return 4 * model.heads * model.head_dim * keys // seq_len + _compression_flops(model, seq_len)


def cached(model: ModelConfig) -> int:
    """Elements by which decoding's cache grows with each token: keys and values of the selected branch, and one of each
    in d tokens of the compressed one. The window's, and the tokens of unfinished compressed blocks, do not grow."""
    nsa = _nsa(model)
    return 2 * nsa.query_groups * model.head_dim * (nsa.compress_stride + 1) // nsa.compress_stride


def saved(model: ModelConfig, tp: int) -> int:
    """Elements per token that one rank keeps from forward to backward, the layer's input left out.

    Per head: rotated query, output of each branch, their gated sum, gates. Per group: keys and values of two branches;
    of the third φ's input blocks (which overlap), both inner activations and the result; numbers of chosen blocks.
    """
    nsa, dim = _nsa(model), model.head_dim
    compression = 2 * dim * (nsa.compress_block + 3) // nsa.compress_stride
    per_head = (2 + BRANCHES) * dim + BRANCHES
    per_group = 4 * dim + compression + 4 * nsa.select_count
    return model.heads // tp * per_head + nsa.query_groups // tp * per_group


def recomputed(model: ModelConfig, tp: int) -> int:
    """Of these, what selective recomputation does not keep: the output of each branch and the numbers of blocks."""
    nsa = _nsa(model)
    return model.heads // tp * BRANCHES * model.head_dim + nsa.query_groups // tp * 4 * nsa.select_count
