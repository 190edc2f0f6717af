"""Score continuations: the loss of each of their tokens, and the model's most likely token there.

The continuations of a group begin alike, as the choices of a few-shot question do. The shared beginning is computed
once, and all continue from its cache. Continuations that differ only in their last token, as letters do, are one row,
since the model never reads that token. R = rows, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from efficientbench.basics.errors import GenerationError
from efficientbench.generation.decoder import whole_logits
from efficientbench.model.cache import Cache

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT


T = TypeVar("T")


def rounded(length: int, longest: int | None) -> int:
    """Return the length that rows are padded to: at most an eighth more than `length`, and never beyond `longest`.

    Few different lengths, since positional encodings cache what they compute for each length.
    """
    step = max(1 << max(length.bit_length() - 4, 0), 1)
    filled = -(-length // step) * step
    return filled if longest is None else max(min(filled, longest), length)


def padded_parts(ordered: Sequence[T], length: Callable[[T], int], budget: int) -> Iterator[list[T]]:
    """Yield consecutive parts that have at most `budget` tokens with padding, or a single element.

    Args:
        ordered: the elements, by ascending length.
        length: returns the tokens of an element.
        budget: the most tokens of a part.
    """
    part: list[T] = []
    for each in ordered:
        if part and length(each) * (len(part) + 1) > budget:
            yield part
            part = []
        part.append(each)
    if part:
        yield part


SHORTEST_SHARED = 16
"""The fewest shared tokens that are computed separately: for fewer, a second pass costs more than it saves."""


@dataclass(frozen=True)
class Continuation:
    """A sequence whose tokens from `first` on are scored."""

    tokens: Sequence[int]
    first: int
    """The index of the first scored token, 1 or more; if it is the number of tokens, none is scored."""


@dataclass(frozen=True)
class Scored:
    """The scores of n tokens."""

    losses: np.ndarray
    """Each token's loss, float64 [n], nats."""
    greedy: np.ndarray
    """The most likely token at each position, int64 [n]."""

    @property
    def mean(self) -> float:
        """Return the mean loss, nats; NaN if no token is scored."""
        return float(self.losses.mean()) if len(self.losses) else float("nan")


Group = Sequence[Continuation]
Row = tuple[tuple[int, ...], int]
"""The tokens of a continuation that the model reads, all but the last, and the index of the first scored token."""
NOTHING = Scored(np.zeros(0), np.zeros(0, np.int64))


class Scorer:
    """Scores groups with one model, in batches of groups of similar length."""

    def __init__(self, model: GPT, longest: int | None, batch_tokens: int) -> None:
        """Take the model and the limits.

        Args:
            model: the model, in evaluation mode.
            longest: the model's number of positions; None: unlimited.
            batch_tokens: the most tokens of a batch, about; a larger group is a batch by itself.
        """
        self.model, self.longest, self.batch_tokens = model, longest, batch_tokens
        self.device = next(model.parameters()).device

    def score(self, groups: Sequence[Group]) -> Iterator[list[tuple[int, list[Scored]]]]:
        """Yield, batch after batch, the numbers of groups and the scores of their continuations.

        Raises GenerationError: a loss is NaN or infinite.
        """
        shared = [_shared(group) for group in groups]
        # Groups without a shared beginning are computed in one pass, the others in two.
        alone = [number for number, each in enumerate(shared) if not each]
        for numbers in (alone, [number for number, each in enumerate(shared) if each]):
            tokens = {number: sum(len(read) for read, _ in _rows(groups[number])) for number in numbers}
            numbers.sort(key=lambda number: (tokens[number], shared[number]))
            for part in padded_parts(numbers, tokens.__getitem__, self.batch_tokens):
                found = iter(self._batch([groups[each] for each in part], [shared[each] for each in part]))
                yield [
                    (number, [next(found) if _length(each) else NOTHING for each in groups[number]]) for number in part
                ]

    @torch.no_grad()
    def _batch(self, groups: Sequence[Group], shared: Sequence[int]) -> list[Scored]:
        """Score the continuations of all groups, in order, but for continuations without a scored token."""
        rows = [(at, row) for at, group in enumerate(groups) for row in _rows(group)]
        if not rows:
            return []
        width = max(len(read) - shared[at] for at, (read, _) in rows)
        # Padding after the longest shared beginning may exceed the model's positions.
        if self.longest is not None and max(shared) + width > self.longest:
            shared = [0] * len(groups)
        inputs = [read[shared[at] :] for at, (read, _) in rows]
        places = [range(first - 1 - shared[at], len(read) - shared[at]) for at, (read, first) in rows]
        tokens, only = self._filled(inputs, max(shared)), _padded(places).to(self.device)
        if any(shared):
            cache = self._beginnings(groups, shared, tokens.shape[1])
            cache.select(torch.tensor([at for at, _ in rows], device=self.device))
            with cache.bound():
                cache.counts.copy_(torch.tensor([len(each) for each in inputs]))
                logits = self.model(tokens, only=only)
        else:
            logits = self.model(tokens, only=only)
        places_of = {row: place for place, row in enumerate(rows)}
        scored = [(at, each) for at, group in enumerate(groups) for each in group if _length(each)]
        wanted = [each.tokens[each.first :] for _, each in scored]
        return _losses(whole_logits(self.model, logits), [places_of[at, _row(each)] for at, each in scored], wanted)

    def _beginnings(self, groups: Sequence[Group], shared: Sequence[int], room: int) -> Cache:
        """Return a cache of the groups' shared beginnings, one row per group, with room for `room` more tokens."""
        beginnings = [
            next(each for each in group if _length(each)).tokens[:count]
            for group, count in zip(groups, shared, strict=True)
        ]
        tokens = self._filled(beginnings, 0)
        cache = Cache(self.model, len(groups), max(tokens.shape[1], max(shared) + room))
        with cache.bound():
            cache.counts.copy_(torch.tensor(shared))
            self.model(tokens, only=cache.counts - 1)
            cache.advance()
        return cache

    def _filled(self, rows: Sequence[Sequence[int]], before: int) -> torch.Tensor:
        """Return the rows on the device, padded to a rounded length; `before`: how many tokens precede them."""
        tokens = _padded(rows)
        wide = rounded(tokens.shape[1], None if self.longest is None else self.longest - before)
        return torch.nn.functional.pad(tokens, (0, wide - tokens.shape[1])).to(self.device)


def common(sequences: Sequence[Sequence[int]]) -> int:
    """Return how many tokens the sequences share at their beginning."""
    shortest = min(map(len, sequences))
    first = sequences[0]
    return next((at for at in range(shortest) if any(each[at] != first[at] for each in sequences)), shortest)


def _length(continuation: Continuation) -> int:
    """Return how many tokens of a continuation the model reads: all but the last; 0 if none is scored."""
    scored = len(continuation.tokens) - continuation.first
    return len(continuation.tokens) - 1 if scored else 0


def _row(continuation: Continuation) -> Row:
    return tuple(continuation.tokens[:-1]), continuation.first


def _rows(group: Group) -> list[Row]:
    """Return the distinct rows that the model reads for a group."""
    return list(dict.fromkeys(_row(each) for each in group if _length(each)))


def _shared(group: Group) -> int:
    """Return how many first tokens are computed once for all rows of a group."""
    rows = _rows(group)
    if len(rows) < 2:
        return 0
    # Each row computes the token before its first scored one, whose logits are wanted.
    alike = min(common([read for read, _ in rows]), *(first - 1 for _, first in rows))
    return alike if alike >= SHORTEST_SHARED else 0


def _losses(logits: torch.Tensor, rows: Sequence[int], wanted: Sequence[Sequence[int]]) -> list[Scored]:
    """Return the scores of continuations.

    Args:
        logits: the logits at the scored positions [R, n, V].
        rows: each continuation's row.
        wanted: each continuation's scored tokens, at most n.

    Raises:
        GenerationError: a loss is NaN or infinite.
    """
    right = _padded(wanted).to(logits.device)
    losses, greedy = torch.empty(right.shape, dtype=torch.float64), torch.empty(right.shape, dtype=torch.int64)
    for at, row in enumerate(rows):  # one row at a time: all logits in float32 would take much memory
        values = logits[row].float()
        losses[at] = torch.nn.functional.cross_entropy(values, right[at], reduction="none").cpu()
        greedy[at] = values.argmax(dim=-1).cpu()
    found = []
    for at, count in enumerate(map(len, wanted)):
        if not bool(losses[at, :count].isfinite().all()):
            raise GenerationError("a loss is not finite: the weights are broken, or too large for the dtype")
        found.append(Scored(losses[at, :count].numpy(), greedy[at, :count].numpy()))
    return found


def _padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return rows as one tensor, padded with 0 at the end."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(list(row)) for row in rows], batch_first=True)
