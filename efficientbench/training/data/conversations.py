"""Conversations as training samples: packed whole into sequences, with a mask of what is learned.

A sequence of S positions holds S + 1 tokens, of which all but the first are targets where the mask says so. A
conversation is never cut: one of more than S + 1 tokens is left out, and counted. The end of a sequence that no waiting
conversation fits is padding, which is no target. As in training text, a token attends to all before it in its sequence.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from efficientbench.basics.errors import TrainingError
from efficientbench.config.schema import RunConfig
from efficientbench.data_tools.chat.record import mask_prefix
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.intact import BlockReader
from efficientbench.data_tools.tokens.splitting import Split
from efficientbench.training.data.packing import packed_epoch
from efficientbench.training.data.sample_index import no_document
from efficientbench.training.data.validation import ValidationText


def open_conversations(
    config: RunConfig, samples: int, prefix: Path, split: Split, pad: int, blocks: BlockReader | None
) -> tuple[PackedConversations, ValidationText]:
    """Return the training samples and the validation text of a pair of conversations.

    Args:
        config: the run.
        samples: sequences that training draws, in as many epochs as that takes.
        prefix: of the pair.
        split: of the pair.
        pad: the token after the last conversation of a sequence.
        blocks: verifies the tokens that are read; None: they were verified before.

    Raises:
        TrainingError: training or validation has no conversation that a sequence can hold.
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
    packed = PackedConversations(found, split.training, samples, training.seed, pad)
    return packed, ValidationText(ids, training.seq_len, masks)


class Conversations:
    """The conversations of one pair that fit into a sequence, by their numbers in the pair."""

    def __init__(self, prefix: Path, seq_len: int, blocks: BlockReader | None = None) -> None:
        """`blocks`: of the `.bin`, verifies what is read; None: that was verified before."""
        self.ids, self.mask = IndexedDocuments(prefix, blocks), IndexedDocuments(mask_prefix(prefix))
        self.lengths, self.seq_len = self.ids.lengths(), seq_len

    def fitting(self, numbers: np.ndarray) -> np.ndarray:
        """Return those of these conversations that a sequence can hold, in their order."""
        return numbers[self.lengths[numbers] <= self.seq_len + 1]

    def targets(self, number: int) -> int:
        """Return how many tokens of a conversation are learned; its first has nothing before it."""
        return int(self.mask[number][1:].sum(dtype=np.int64))


class PackedConversations:
    """Samples of one pair's conversations: `samples[n]` is a sequence; each epoch has another order."""

    def __init__(self, conversations: Conversations, numbers: np.ndarray, samples: int, seed: int, pad: int) -> None:
        """Pack as many epochs as the samples need; the same arguments give the same samples.

        Args:
            conversations: of the pair.
            numbers: of those that are trained on; one of them fits into a sequence.
            samples: sequences that training draws.
            seed: of the order.
            pad: the token after the last conversation of a sequence.
        """
        self._conversations, self._pad = conversations, pad
        fitting = conversations.fitting(numbers)
        self.too_long = len(numbers) - len(fitting)
        """Conversations that no sequence can hold."""
        self.tokens = int(conversations.lengths[fitting].sum())
        """Of the conversations of one epoch."""
        self._rows: list[list[int]] = []
        epoch = 0
        while len(self._rows) < samples:
            self._rows += packed_epoch(fitting.tolist(), conversations.lengths, conversations.seq_len + 1, seed, epoch)
            epoch += 1
        targets = {number: conversations.targets(number) for number in fitting.tolist()}
        self._targets = np.array([sum(map(targets.__getitem__, row)) for row in self._rows], np.int64)

    def targets(self, first: int, end: int) -> int:
        """Return how many tokens the samples from `first` up to `end` teach."""
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
    """Return ids and masks of the first conversations that hold so many targets together, or of all there are.

    Args:
        conversations: of the pair.
        numbers: of those for validation, in order.
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
