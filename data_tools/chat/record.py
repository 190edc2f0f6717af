"""The manifest's record of how a conversation pair was made, and the check of its mask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from efficientbench.basics.counted import number_of
from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokens.indexed import (
    MASK_DTYPE,
    bin_path,
    check_indexed,
    idx_path,
    map_index,
    mask_prefix,
)
from efficientbench.data_tools.tokens.manifest import Corpus, load_record

_CHUNK = 1 << 24
"""Entries of a mask that are checked at once."""


@dataclass(frozen=True)
class TaskRecord:
    """The counts of one task of the mixture, in one epoch."""

    task: str
    files: list[str]
    conversations: int
    epochs: int
    tokens: int
    supervised_tokens: int
    rejected: dict[str, int] = field(default_factory=dict)
    """Rows left out as unusable, by reason."""


@dataclass(frozen=True)
class ConversationRecord:
    """How a pair was made from conversations; the manifest has it under `conversations`."""

    KEY: ClassVar[str] = "conversations"

    plan: dict[str, Any]
    """Everything that decided the result: rules, tokenizer, style, mixture, and path and SHA-256 of each input."""
    tasks: list[TaskRecord]
    style: str
    supervised_tokens: int
    """Tokens whose mask is 1, in all epochs."""
    longest: int
    """Tokens of the longest conversation."""
    special_token_strings: dict[str, int]
    """How often names of special tokens occur in the text, where they are ordinary text; epochs are not counted."""
    engine: str
    """The library that encoded, with its version."""
    engine_reason: str | None
    """Why it was not tiktoken; None if it was."""
    versions: dict[str, str]
    """Versions of all that may decide how text becomes tokens."""


def check_mask(corpus: Corpus) -> None:
    """Check the mask of a checked conversation pair; do nothing for any other corpus.

    Raises:
        DataError: the mask is damaged, its conversations have other lengths than those of the tokens, an entry is
            neither 0 nor 1, or the number of supervised tokens is not the manifest's.
    """
    record = load_record(corpus.manifest, ConversationRecord)
    if record is None:
        return
    prefix = mask_prefix(corpus.prefix)
    dtype = check_indexed(prefix).dtype
    if dtype != MASK_DTYPE:
        raise DataError(f"{idx_path(prefix)}: a mask holds {MASK_DTYPE}, this one {dtype}: make it again")
    own, wanted = (map_index(idx_path(each))[1] for each in (prefix, corpus.prefix))
    if not np.array_equal(own, wanted):
        raise DataError(f"{idx_path(prefix)}: its lengths are not those of {idx_path(corpus.prefix)}: make it again")
    entries = np.memmap(bin_path(prefix), dtype=MASK_DTYPE, mode="r")
    supervised = 0
    for first in range(0, len(entries), _CHUNK):
        part = entries[first : first + _CHUNK]
        if part.max() > 1:
            byte = first + int((part > 1).argmax())
            raise DataError(f"{bin_path(prefix)}: byte {byte:,}: {entries[byte]} is neither 0 nor 1: make it again")
        supervised += int(part.sum(dtype=np.int64))
    if supervised != record.supervised_tokens:
        raise DataError(
            f"{bin_path(prefix)} marks {supervised:,} tokens, but {corpus.manifest} says "
            f"{record.supervised_tokens:,}: one of them was replaced"
        )


def describe_conversations(corpus: Corpus, record: ConversationRecord) -> Iterator[str]:
    """Yield lines that describe a conversation pair for people."""
    share = record.supervised_tokens / corpus.tokens
    yield (
        f"{corpus.prefix}: {number_of(corpus.documents, 'conversation')} of {corpus.tokens:,} tokens, {share:.1%} of "
        f"them supervised; the longest has {record.longest:,}"
    )
    for task in record.tasks:
        epochs = f" x {task.epochs}" if task.epochs > 1 else ""
        yield (
            f"  {task.task}: {task.conversations:,}{epochs} conversations, {task.tokens:,} tokens, "
            f"{task.supervised_tokens:,} supervised"
        )
        for reason, count in sorted(task.rejected.items()):
            yield f"    {number_of(count, 'row')} left out (unusable: drop): {reason}"
    yield f"style: {record.style}; encoded by {record.engine}"
    special = ", ".join(f"{count:,} x {string}" for string, count in record.special_token_strings.items())
    yield f"names of special tokens in the text, kept as text: {special or 'none'}"
    yield f"manifest: {corpus.manifest}"
