"""Conversations as training samples: packed uncut into sequences, with a mask of the learned tokens.

A sequence of S positions holds S + 1 tokens; all but the first are targets if the mask is 1. A conversation is never
cut: one of more than S + 1 tokens is skipped, and counted. The rest of a sequence that no waiting conversation fits is
padding, which is no target. As in training text, a token attends to all tokens before it in its sequence.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from efficientbench.basics.errors import TrainingError
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.tokens.indexed import mask_prefix
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.intact import BlockReader
from efficientbench.data_tools.tokens.splitting import Split
from efficientbench.training.data.packing import packed_epoch
from efficientbench.training.data.sample_index import no_document
from efficientbench.training.data.validation import ValidationText


def open_conversations(
    config: RunConfig, samples: int, prefix: Path, split: Split, pad: int, blocks: BlockReader | None
) -> tuple[PackedConversations, ValidationText]:
    """Return the training samples and the validation text of a corpus of conversations.

    Args:
        config: the run's configuration.
        samples: sequences that training draws, in as many epochs as necessary.
        prefix: prefix of the corpus, a pair of token ids and masks.
        split: split of the corpus.
        pad: token id of the padding.
        blocks: verifies tokens as they are read; None: they were verified beforehand.

    Raises:
        TrainingError: training or validation has no conversation that fits into a sequence.
    """
    training = config.training
    found = Conversations(prefix, training.seq_len, blocks)
    for part, numbers in (("training", split.training), ("validation", split.validation)):
        if not len(numbers):
            raise no_document(config, prefix, part)
        if not len(found.fitting(numbers)):
            raise TrainingError(
                f"{prefix}: no conversation for {part} fits into training.seq_len={training.seq_len}, and none is cut; "
                f"the shortest of them has {found.lengths[numbers].min():,} tokens"
            )
    ids, masks = choose_conversations(found, split.validation, training.validation_tokens)
    packed = PackedConversations(found, split.training, samples, config.order_seed, pad)
    return packed, ValidationText(ids, training.seq_len, masks)


class Conversations:
    """The conversations of one corpus, by number, and the sequence length that they must fit."""

    def __init__(self, prefix: Path, seq_len: int, blocks: BlockReader | None = None) -> None:
        """`blocks`: verifies each block of the `.bin` as it is read; None: the file was verified beforehand."""
        self.ids, self.mask = IndexedDocuments(prefix, blocks), IndexedDocuments(mask_prefix(prefix))
        self.lengths, self.seq_len = self.ids.lengths(), seq_len

    def fitting(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers of those conversations that fit into a sequence, in the same order."""
        return numbers[self.lengths[numbers] <= self.seq_len + 1]

    def targets(self, number: int) -> int:
        """Return how many tokens of a conversation are learned; the first is not, since no token precedes it."""
        return int(self.mask[number][1:].sum(dtype=np.int64))


class PackedConversations:
    """Samples of one corpus's conversations: `samples[n]` is a sequence; each epoch has another order."""

    def __init__(self, conversations: Conversations, numbers: np.ndarray, samples: int, seed: int, pad: int) -> None:
        """Pack as many epochs as the samples need; the same arguments give the same samples.

        Args:
            conversations: the conversations of the corpus.
            numbers: numbers of the training conversations; at least one fits into a sequence.
            samples: sequences that training draws.
            seed: seed of the order.
            pad: token id of the padding.
        """
        self._conversations, self._pad = conversations, pad
        fitting = conversations.fitting(numbers)
        self.too_long = len(numbers) - len(fitting)
        """Number of conversations that are too long for a sequence."""
        self.tokens = int(conversations.lengths[fitting].sum())
        """Tokens of the conversations of one epoch."""
        self._rows: list[list[int]] = []
        epoch = 0
        while len(self._rows) < samples:
            self._rows += packed_epoch(fitting.tolist(), conversations.lengths, conversations.seq_len + 1, seed, epoch)
            epoch += 1
        targets = {number: conversations.targets(number) for number in fitting.tolist()}
        self._targets = np.array([sum(map(targets.__getitem__, row)) for row in self._rows], np.int64)

    def targets(self, first: int, end: int) -> int:
        """Return the number of targets of the samples from `first` to before `end`."""
        return int(self._targets[first:end].sum())

    def __getitem__(self, sample: int) -> dict[str, torch.Tensor]:
        """Return tokens, labels and loss mask of a sample, [S] each."""
        found, row = self._conversations, self._rows[sample]
        tokens = np.full(found.seq_len + 1, self._pad, np.int64)
        mask = np.zeros(found.seq_len + 1, np.float32)
        end = 0
        for number in row:
            begin, end = end, end + int(found.lengths[number])
            tokens[begin:end] = found.ids[number]
            mask[begin + 1 : end] = found.mask[number][1:]
        whole = torch.from_numpy(tokens)
        return {"tokens": whole[:-1], "labels": whole[1:], "loss_mask": torch.from_numpy(mask[1:])}


def choose_conversations(
    conversations: Conversations, numbers: np.ndarray, targets: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return token ids and masks of the first conversations with `targets` targets together, or of all.

    Args:
        conversations: the conversations of the corpus.
        numbers: numbers of the validation conversations, in order.
        targets: tokens to score.
    """
    ids, masks = [], []
    for number in conversations.fitting(numbers).tolist():
        if targets <= 0:
            break
        ids.append(conversations.ids[number])
        masks.append(conversations.mask[number])
        targets -= conversations.targets(number)
    return ids, masks
