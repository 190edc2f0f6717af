"""Continue prompts with a model, batch after batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from efficientbench.architecture.model import ModelConfig
from efficientbench.basics.errors import ConfigError, GenerationError
from efficientbench.generation.calls import Calculator, Calls
from efficientbench.generation.decoder import Decoder, Forward
from efficientbench.generation.sampling import Sampling, choose, uniform

if TYPE_CHECKING:
    from efficientbench.model.gpt import GPT


@dataclass(frozen=True)
class Row:
    """One continuation of one prompt."""

    prompt: int
    """The prompt's number."""
    sample: int = 0
    """The continuation's number among its prompt's continuations."""


@dataclass(frozen=True)
class Emitted:
    """One new token."""

    row: Row
    step: int
    """The token's number among its row's new tokens, from 0."""
    token: int
    last: bool
    """Whether it ends the row: it is a stop token, or the row's last one of `max_new_tokens`."""
    forced: bool = False
    """Whether the calculator wrote it instead of the model."""


def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    max_new_tokens: int,
    stop: Collection[int] = (),
    samples: int = 1,
    batch: int = 8,
    step: Forward | None = None,
    calculator: Calculator | None = None,
    numbers: Sequence[int] | None = None,
) -> Iterator[list[Emitted]]:
    """Yield the new tokens of a batch's rows step by step, one batch after the other.

    Args:
        model: the full model or a tensor-parallel rank's part, in evaluation mode.
        prompts: the tokens of each prompt, one or more; ranks that share experts need equally many prompts.
        sampling: how tokens are chosen.
        max_new_tokens: the most new tokens of a row, 1 or more.
        stop: tokens that end a row.
        samples: continuations of each prompt; the prompt is computed once.
        batch: rows that are computed at once; the samples of a prompt stay together.
        step: computes a decoding step, for example the compiled model; None: the model itself.
        calculator: computes the calls of rows; None: calls have no result.
        numbers: the prompts' numbers, which name their rows and decide their random numbers; None: from 0.

    Raises:
        GenerationError: the model computed NaN or infinity.
    """
    together = max(batch // samples, 1)
    named = range(len(prompts)) if numbers is None else numbers
    for first in range(0, len(prompts), together):
        part = prompts[first : first + together]
        decoder = Decoder(model, part, max_new_tokens, step)
        rows = [Row(number, sample) for number in named[first : first + together] for sample in range(samples)]
        with decoder.bound():
            yield from _batch(decoder, rows, sampling, max_new_tokens, frozenset(stop), samples, calculator)
        # Before the next cache is allocated.
        del decoder


def _batch(
    decoder: Decoder,
    rows: list[Row],
    sampling: Sampling,
    max_new_tokens: int,
    stop: frozenset[int],
    samples: int,
    calculator: Calculator | None,
) -> Iterator[list[Emitted]]:
    logits = decoder.prefill()
    if samples > 1:
        decoder.expand(samples)
        logits = logits.repeat_interleave(samples, dim=0)
    ended = [False] * len(rows)
    calls = [Calls(calculator) for _ in rows] if calculator else []
    for step in range(max_new_tokens):
        tokens = next_tokens(logits, rows, sampling, step)
        forced = [_force(tokens, index, each) for index, each in enumerate(calls)] or [False] * len(rows)
        emitted = []
        for index, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            if not ended[index]:
                ended[index] = token in stop or step == max_new_tokens - 1
                emitted.append(Emitted(row, step, token, ended[index], forced[index]))
        yield emitted
        if decoder.all_end(all(ended)):
            return
        left = [index for index, each in enumerate(ended) if not each]
        # Not whenever a row ends, since each selection copies the cache.
        if 0 < 2 * len(left) <= len(rows):
            decoder.select(left)
            rows, tokens, ended = [rows[each] for each in left], [tokens[each] for each in left], [False] * len(left)
            calls = [calls[each] for each in left] if calls else []
        logits = decoder.step(tokens)


def _force(tokens: list[int], index: int, calls: Calls) -> bool:
    """Replace a row's chosen token by the one that its calls force, if any; return whether one was forced."""
    forced = bool(calls.forced)
    if forced:
        tokens[index] = calls.forced.popleft()
    calls.add(tokens[index])
    return forced


def next_tokens(logits: torch.Tensor, rows: Sequence[Row], sampling: Sampling, step: int) -> list[int]:
    """Choose each row's next token from logits [B, V].

    Raises:
        GenerationError: a row's largest logit is not finite.
    """
    values, tokens = _candidates(logits, sampling)
    # NaN counts as the largest.
    largest = values.max(axis=1)
    broken = np.flatnonzero(~np.isfinite(largest))
    if len(broken):
        prompt, logit = rows[broken[0]].prompt + 1, largest[broken[0]]
        raise GenerationError(
            f"prompt {prompt}, new token {step + 1}: the largest logit is {logit}: the weights are broken, or too "
            "large for the dtype"
        )
    if sampling.temperature == 0:
        return [int(token) for token in tokens[:, 0]]
    chosen = []
    for row, some, their in zip(rows, values, tokens, strict=True):
        number = uniform(sampling.seed, row.prompt, row.sample, step)
        chosen.append(choose(some, their, sampling, number))
    return chosen


def _candidates(logits: torch.Tensor, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of each row's candidates and their tokens, [B, K] on the host; if K < V, the largest first."""
    logits, vocabulary = logits.float(), logits.shape[1]
    count = sampling.candidates(vocabulary)
    if count == vocabulary:
        values = logits.cpu().numpy()
        return values, np.broadcast_to(np.arange(vocabulary), values.shape)
    # `max` is several times as fast as `topk` of one.
    if count == 1:
        largest, numbers = logits.max(dim=1, keepdim=True)
    else:
        largest, numbers = logits.topk(count, dim=1)
    return largest.cpu().numpy(), numbers.cpu().numpy()


def check_lengths(model: ModelConfig, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Refuse prompts that, with their new tokens, have more tokens than the model has positions.

    Raises:
        ConfigError: a prompt is too long; the message says by how much.
    """
    longest = model.position.longest
    for number, prompt in enumerate(prompts, start=1):
        if longest is not None and len(prompt) + max_new_tokens > longest:
            fits = longest - len(prompt)
            remedy = f"--max-new-tokens {fits} would fit" if fits > 0 else f"give at most {longest - 1} tokens"
            raise ConfigError(
                f"prompt {number} has {len(prompt):,} tokens, and with {max_new_tokens:,} new ones "
                f"{len(prompt) + max_new_tokens:,}: the model has {longest:,} positions "
                f"(model.position.kind={model.position.kind}); {remedy}"
            )
