"""How likely a model finds continuations: the loss of each of their tokens, and whether it would have chosen it.

Continuations of one group begin alike, as the choices of a few-shot question do. What they share is computed once, and
all go on from its cache. V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from efficientbench.evaluation.batching import padded_parts, rounded
from efficientbench.generation.decoder import whole_logits
from efficientbench.generation.errors import GenerationError
from efficientbench.model.cache import Cache

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT

SHORTEST_SHARED = 16
"""Tokens from which on a shared beginning is computed by itself: for fewer, a second pass costs more than it saves."""


@dataclass(frozen=True)
class Continuation:
    """A sequence whose tokens from some place on are scored."""

    tokens: Sequence[int]
    first: int
    """Of the scored tokens, 1 or more; none is scored where it is their number."""


@dataclass(frozen=True)
class Scored:
    """Of n scored tokens."""

    losses: np.ndarray
    """float64 [n], nats."""
    greedy: np.ndarray
    """int64 [n], the likeliest token at the place of each."""

    @property
    def mean(self) -> float:
        """Return the mean loss, NaN without any token."""
        return float(self.losses.mean()) if len(self.losses) else float("nan")


Group = Sequence[Continuation]
NOTHING = Scored(np.zeros(0), np.zeros(0, np.int64))


class Scorer:
    """Scores groups by one model, in batches of groups of about the same length."""

    def __init__(self, model: GPT, longest: int | None, batch_tokens: int) -> None:
        """Take what it computes by.

        Args:
            model: in evaluation mode.
            longest: tokens that it has positions for; None: any number.
            batch_tokens: of a batch with padding, of all rows; a larger group is a batch by itself.
        """
        self.model, self.longest, self.batch_tokens = model, longest, batch_tokens
        self.device = next(model.parameters()).device

    def score(self, groups: Sequence[Group]) -> Iterator[list[tuple[int, list[Scored]]]]:
        """Yield, batch after batch, the numbers of groups and what their continuations score.

        Raises GenerationError: a loss is NaN or infinite.
        """
        shared = [_shared(group) for group in groups]
        # Those that share nothing are computed in one pass, the others in two.
        alone = [number for number, each in enumerate(shared) if not each]
        for numbers in (alone, [number for number, each in enumerate(shared) if each]):
            tokens = {number: sum(map(_length, groups[number])) for number in numbers}
            numbers.sort(key=lambda number: (tokens[number], shared[number]))
            for part in padded_parts(numbers, tokens.__getitem__, self.batch_tokens):
                found = iter(self._batch([groups[each] for each in part], [shared[each] for each in part]))
                yield [
                    (number, [next(found) if _length(each) else NOTHING for each in groups[number]]) for number in part
                ]

    @torch.no_grad()
    def _batch(self, groups: Sequence[Group], shared: Sequence[int]) -> list[Scored]:
        """Score the continuations of all groups, one after the other, without those that have nothing to score."""
        rows = [(at, each) for at, group in enumerate(groups) for each in group if _length(each)]
        if not rows:
            return []
        width = max(_length(each) - shared[at] for at, each in rows)
        # Rows are filled up behind their longest beginning, for which an encoding may have no positions.
        if self.longest is not None and max(shared) + width > self.longest:
            shared = [0] * len(groups)
        inputs = [each.tokens[shared[at] : -1] for at, each in rows]
        places = [range(each.first - 1 - shared[at], len(each.tokens) - 1 - shared[at]) for at, each in rows]
        tokens, only = self._filled(inputs, max(shared)), _padded(places).to(self.device)
        if any(shared):
            cache = self._beginnings(groups, shared, tokens.shape[1])
            cache.select(torch.tensor([at for at, _ in rows], device=self.device))
            with cache.bound():
                cache.counts.copy_(torch.tensor([len(each) for each in inputs]))
                logits = self.model(tokens, only=only)
        else:
            logits = self.model(tokens, only=only)
        wanted = _padded([each.tokens[each.first :] for _, each in rows]).to(self.device)
        return _losses(whole_logits(self.model, logits), wanted, [len(each) for each in places])

    def _beginnings(self, groups: Sequence[Group], shared: Sequence[int], room: int) -> Cache:
        """Return the cache behind what each group shares, a row for each, with room for so many tokens more."""
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
        """Return the tokens of rows on the device, filled up to a rounded number; `before`: tokens in front of them."""
        tokens = _padded(rows)
        wide = rounded(tokens.shape[1], None if self.longest is None else self.longest - before)
        return torch.nn.functional.pad(tokens, (0, wide - tokens.shape[1])).to(self.device)


def common(sequences: Sequence[Sequence[int]]) -> int:
    """Return how many tokens the sequences share at their beginning."""
    shortest = min(map(len, sequences))
    first = sequences[0]
    return next((at for at in range(shortest) if any(each[at] != first[at] for each in sequences)), shortest)


def _length(continuation: Continuation) -> int:
    """Return how many tokens the model reads of it: none where none is scored, and never the last."""
    scored = len(continuation.tokens) - continuation.first
    return len(continuation.tokens) - 1 if scored else 0


def _shared(group: Group) -> int:
    """Return how many tokens are to be computed once for all that is scored of a group."""
    scored = [each for each in group if _length(each)]
    if len(scored) < 2:
        return 0
    # The token before the first scored one is left to each, since its logits are wanted.
    alike = min(common([each.tokens for each in scored]), *(each.first - 1 for each in scored))
    return alike if alike >= SHORTEST_SHARED else 0


def _losses(logits: torch.Tensor, wanted: torch.Tensor, counts: Sequence[int]) -> list[Scored]:
    """Return what the tokens `wanted` [B, n] score by their logits [B, n, V]; `counts`: how many of each row count."""
    losses, greedy = torch.empty(wanted.shape, dtype=torch.float64), torch.empty(wanted.shape, dtype=torch.int64)
    for row, (each, right) in enumerate(zip(logits, wanted, strict=True)):  # all in float32 would take much memory
        values = each.float()
        losses[row] = torch.nn.functional.cross_entropy(values, right, reduction="none").cpu()
        greedy[row] = values.argmax(dim=-1).cpu()
    found = []
    for row, count in enumerate(counts):
        if not bool(losses[row, :count].isfinite().all()):
            raise GenerationError("a loss is not finite: the weights are broken, or too large for the dtype")
        found.append(Scored(losses[row, :count].numpy(), greedy[row, :count].numpy()))
    return found


def _padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return rows as one tensor, filled up with 0 behind."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(list(row)) for row in rows], batch_first=True)
