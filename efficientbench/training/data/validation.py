"""The text of a validation: the same target tokens for every sequence length, batch, layout and variant.

A document's first token is only context; all others are targets. Each document begins a sequence. A document longer
than a sequence is cut into pieces, and a token does not see earlier pieces. So longer sequences score the same tokens
with more context.
S = sequence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.training.events import ValidationEnded

if TYPE_CHECKING:
    from efficientbench.training.data.batch import Batch

LARGEST_SHARE = 16
"""A document has at most 1 / LARGEST_SHARE of the targets, so that a few long documents do not decide the loss."""


@dataclass(frozen=True)
class Row:
    """A piece of a document, which fills one sequence or its beginning."""

    document: int
    """Number of the document."""
    first: int
    """Position of the piece's first token in the document."""
    targets: int
    """Number of the piece's target tokens."""


class ValidationText:
    """Pieces of documents as samples: `text[row]` is one sequence; rows beyond the last piece have no target."""

    def __init__(
        self, documents: Sequence[np.ndarray], seq_len: int, masks: Sequence[np.ndarray] | None = None
    ) -> None:
        """`documents`: tokens of each, at least two; `masks`: 1 for targets, or None if all tokens are targets."""
        self.seq_len = seq_len
        self.masks = None if masks is None else [torch.from_numpy(mask.astype(np.float32)) for mask in masks]
        self.documents = [torch.from_numpy(document.astype(np.int64)) for document in documents]
        self.rows = [
            Row(number, first, min(seq_len, len(document) - 1 - first))
            for number, document in enumerate(documents)
            for first in range(0, len(document) - 1, seq_len)
        ]

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the target tokens as little-endian int64, document after document; then of the masks."""
        digest = hashlib.sha256()
        for document in self.documents:
            digest.update(document[1:].numpy().astype("<i8").tobytes())
        for mask in self.masks or ():
            digest.update(mask[1:].numpy().astype("u1").tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Return tokens, labels and loss mask of a row, [S] each."""
        tokens, labels = torch.zeros(2, self.seq_len, dtype=torch.int64)
        loss_mask = torch.zeros(self.seq_len)
        if number < len(self.rows):
            row = self.rows[number]
            document, last = self.documents[row.document], row.first + row.targets
            tokens[: row.targets] = document[row.first : last]
            labels[: row.targets] = document[row.first + 1 : last + 1]
            loss_mask[: row.targets] = 1 if self.masks is None else self.masks[row.document][row.first + 1 : last + 1]
        return {"tokens": tokens, "labels": labels, "loss_mask": loss_mask}

    def by_document(self, sums: np.ndarray) -> np.ndarray:
        """Sum the values of rows, [rows or more, n], by document: [documents, n]."""
        totals = np.zeros((len(self.documents), sums.shape[1]))
        np.add.at(totals, [row.document for row in self.rows], sums[: len(self.rows)])
        return totals


def choose_documents(sources: Sequence[tuple[float, IndexedDocuments, np.ndarray]], targets: int) -> list[np.ndarray]:
    """Return the first documents of each source that have its share of the targets, or all documents.

    Args:
        sources: each source's share, its documents, and the numbers of its validation documents, in order.
        targets: tokens to score.

    Returns:
        The tokens of each document, from its beginning, perhaps cut at the end.
    """
    most = max(targets // LARGEST_SHARE, 1)
    chosen = []
    for share, documents, numbers in sources:
        left = round(share * targets)
        for number in numbers:
            if left <= 0:
                break
            tokens = documents[int(number)][: min(most, left) + 1]
            if len(tokens) > 1:
                chosen.append(tokens)
                left -= len(tokens) - 1
    return chosen


def row_losses(
    batch: Batch, token_bytes: torch.Tensor | None, losses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the loss and its divisor for Megatron, and loss, tokens and UTF-8 bytes of each sequence [B, 3].

    Args:
        batch: one micro-batch.
        token_bytes: [V] int64, UTF-8 bytes of each token; None if the tokenizer does not know them.
        losses: [B], the sum over the targets of each sequence.
    """
    # Weights of validation text are 0 and 1.
    tokens = batch.weights.sum(dim=1)
    utf8_bytes = torch.zeros_like(tokens)
    if token_bytes is not None:
        utf8_bytes = (token_bytes[batch.labels] * batch.weights).sum(dim=1)
    return losses.sum(), tokens.sum().int(), torch.stack([losses.float(), tokens, utf8_bytes.float()], dim=1)


def ended(step: int, text: ValidationText, documents: np.ndarray, knows_bytes: bool) -> ValidationEnded:
    """Return the event of a validation; `documents` [documents, 3]: loss, tokens and UTF-8 bytes of each."""
    loss, tokens, utf8_bytes = documents.sum(axis=0).tolist()
    return ValidationEnded(
        step,
        loss / tokens,
        tuple((documents[:, 0] / documents[:, 1]).tolist()),
        tuple(documents[:, 1].astype(int).tolist()),
        int(utf8_bytes) if knows_bytes else None,
        text.fingerprint,
    )
