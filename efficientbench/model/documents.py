"""Attention within documents: each document of a packed sequence is computed as a sequence of its own.

No mask separates documents: a kernel is called for one document after another, so that no score of two documents is
ever computed. The token that ends a document is its last one.
S = sequence, B = micro-batch, D = head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar

import torch

from efficientbench.model import context_parallel
from efficientbench.model.kernels.causal_attention import AttentionKernel, causal_attention
from efficientbench.model.position import Position


class Documents:
    """The documents of one micro-batch. Megatron hands them to every layer as its `packed_seq_params`."""

    qkv_format: ClassVar[str] = "sbhd"
    """What Megatron reads of its own packed sequences: here tensors keep their layout."""

    def __init__(self, bounds: Sequence[Sequence[int]], positions: torch.Tensor) -> None:
        """Take the documents of each row.

        Args:
            bounds: as `bounds_of` returns them.
            positions: [S, B], each token's position in its document; under context parallelism of this rank's tokens.
        """
        self.bounds, self.positions = bounds, positions
        self._encodings: dict[int, Position] = {}

    def encoding(self, position: Position) -> Position:
        """Return a layer's positional encoding of queries and keys, at the positions within documents."""
        if position.number not in self._encodings:
            self._encodings[position.number] = position.at(self.positions)
        return self._encodings[position.number]

    def each(
        self,
        compute: Callable[..., torch.Tensor],
        tensors: Sequence[torch.Tensor],
        whole: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        """Return `compute` of each document, put together: [S, B, ...] of this rank.

        Args:
            compute: gets a document's part of each tensor, [Q, 1, ...], and returns [Q, 1, ...].
            tensors: [S, B, ...] of this rank's tokens.
            whole: [S, B, ...] of the whole sequence; `compute` gets them from the document's begin to the part's end.
        """
        rows = [each.split(1, dim=1) for each in (*tensors, *whole)]
        return torch.cat(
            [
                _row(compute, bounds, row[: len(tensors)], row[len(tensors) :])
                for bounds, *row in zip(self.bounds, *rows, strict=True)
            ],
            dim=1,
        )

    def attend(
        self,
        kernel: AttentionKernel,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        of_parts: AttentionKernel = causal_attention,
    ) -> torch.Tensor:
        """Compute causal attention within each document; shapes as of an AttentionKernel.

        `kernel`: computes a document; `of_parts`: the last queries of one, as context-parallel ranks have them.
        """
        if context_parallel.is_shared():
            key, value = context_parallel.gather_sequence(key), context_parallel.gather_sequence(value)
            kernel = of_parts
        return self.each(lambda query, key, value: kernel(query, key, value, scale), (query,), (key, value))


def _row(
    compute: Callable[..., torch.Tensor],
    bounds: Sequence[int],
    own: Sequence[torch.Tensor],
    whole: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Return `compute` of each document of one row, as `Documents.each`."""
    documents = list(pairwise(bounds))
    # By split, whose gradients are joined in one copy.
    seen = [each.split([end - begin for begin, end in documents]) for each in whole]
    parts = [
        (number, max(begin, first), min(end, last))
        for first, last in context_parallel.spans(bounds[-1])
        for number, (begin, end) in enumerate(documents)
        if begin < last and first < end
    ]
    pieces = [each.split([last - first for _, first, last in parts]) for each in own]
    outputs = []
    for (number, _, last), *piece in zip(parts, *pieces, strict=True):
        outputs.append(compute(*piece, *(each[number][: last - documents[number][0]] for each in seen)))
    return torch.cat(outputs)


def bounds_of(tokens: torch.Tensor, end: int) -> list[list[int]]:
    """Return where documents begin and end in each row of tokens [B, S]: 0, the inner bounds in order, and S.

    `end`: the token that ends a document.
    """
    found = []
    for row in tokens:
        inner = (torch.nonzero(row[:-1] == end).flatten() + 1).tolist()
        found.append([0, *inner, len(row)])
    return found


def positions_of(bounds: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return each token's position in its document, [B, S]."""
    return torch.stack([torch.cat([torch.arange(end - begin) for begin, end in pairwise(row)]) for row in bounds])
