"""Tokenize rows, mark the answers' tokens, and store the examples in a file for the ranks of a node."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.rows import RowError, reason_of
from efficientbench.finetuning.config import ExamplesConfig
from efficientbench.finetuning.curriculum.order import order_hash
from efficientbench.finetuning.examples.encoding import RowEncoder
from efficientbench.finetuning.examples.rows import DROP_KEY, Row


@dataclass(frozen=True)
class Examples:
    """Tokenized examples, concatenated."""

    tokens: np.ndarray
    """The token ids of all examples, int32."""
    learned: np.ndarray
    """Whether each token belongs to an answer, bool, shaped like `tokens`."""
    ends: np.ndarray
    """The index in `tokens` after each example's last token, int64 [examples]."""

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return an example's tokens, and its mask of learned tokens."""
        begin = int(self.ends[number - 1]) if number else 0
        part = slice(begin, int(self.ends[number]))
        return self.tokens[part], self.learned[part]

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each example, int64 [examples]."""
        return np.diff(self.ends, prepend=0)

    @property
    def supervised(self) -> np.ndarray:
        """The number of learned tokens of each example, int64 [examples]."""
        return np.diff(np.cumsum(self.learned)[self.ends - 1], prepend=0)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 (hex) of `tokens`, `learned` and `ends`."""
        digest = hashlib.sha256(self.tokens.astype("<i4").tobytes())
        digest.update(self.learned.tobytes() + self.ends.astype("<i8").tobytes())
        return digest.hexdigest()

    def rows(self) -> list[dict[str, list[int]]]:
        """Return the rows that TRL trains on: `input_ids`, and `labels` with -100 at tokens that are not learned."""
        pairs = (self[number] for number in range(len(self)))
        return [{"input_ids": ids.tolist(), "labels": np.where(mask, ids, -100).tolist()} for ids, mask in pairs]


def joined(pairs: Sequence[tuple[list[int], list[bool]]]) -> Examples:
    """Concatenate examples; each is a pair of its tokens and its mask of learned tokens."""
    lengths = [len(ids) for ids, _ in pairs]
    tokens = np.fromiter((token for ids, _ in pairs for token in ids), np.int32, sum(lengths))
    learned = np.fromiter((mark for _, marks in pairs for mark in marks), np.bool_, sum(lengths))
    return Examples(tokens, learned, np.cumsum(lengths, dtype=np.int64))


def tokenized(
    rows: Sequence[Row], tokenizer: Any, config: ExamplesConfig, dropped: Counter[str] | None = None
) -> tuple[Examples, list[int], int]:
    """Return the examples, the numbers of their rows, and how many rows were truncated or dropped as too long.

    Args:
        rows: the rows.
        tokenizer: the model's tokenizer.
        config: what is too long, and what happens to it.
        dropped: counts unusable rows by reason, which are left out; None: such a row is an error.

    Raises:
        DataError: an example is too long and `too_long` is `error`, no example is left, or a row is unusable.
    """
    pairs, kept, too_long = [], [], 0
    encode = RowEncoder(tokenizer)
    for number, row in enumerate(rows):
        try:
            ids, learned = encode(row)
        except RowError as error:
            if dropped is None:
                raise DataError(f"{row.place}: {error}; {DROP_KEY}") from None
            dropped[reason_of(error)] += 1
            continue
        if len(ids) > config.max_length:
            too_long += 1
            if config.too_long == "error":
                raise DataError(
                    f"{row.place}: {len(ids):,} tokens are more than data.max_length={config.max_length:,}; "
                    "data.too_long=drop skips such examples, truncate cuts their answers"
                )
            if config.too_long == "drop" or not any(learned[: config.max_length]):
                continue
        pairs.append((ids[: config.max_length], learned[: config.max_length]))
        kept.append(number)
    if not pairs:
        raise DataError(
            f"none of {len(rows):,} examples has an answer within data.max_length={config.max_length:,} tokens"
        )
    return joined(pairs), kept, too_long


def fingerprint_of(train: Examples, held_out: Examples, order: np.ndarray) -> str:
    """Return the SHA-256 (hex) of a run's examples and their order."""
    parts = (train.fingerprint, held_out.fingerprint, order_hash(order))
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def write_examples(path: Path, train: Examples, held_out: Examples, order: np.ndarray, levels: np.ndarray) -> None:
    """Write the examples for the ranks of a node; `levels`: each held-out example's level, -1: none."""
    parts = {f"train_{name}": value for name, value in vars(train).items()}
    parts |= {f"held_out_{name}": value for name, value in vars(held_out).items()}
    np.savez(path, order=order, levels=levels, **parts)


def read_examples(path: Path) -> tuple[Examples, Examples, np.ndarray, np.ndarray]:
    """Read the file of `write_examples`; return training examples, held-out examples, order, held-out levels."""
    with np.load(path) as file:
        train, held_out = (
            Examples(*(file[f"{name}_{part}"] for part in ("tokens", "learned", "ends")))
            for name in ("train", "held_out")
        )
        return train, held_out, file["order"], file["levels"]
