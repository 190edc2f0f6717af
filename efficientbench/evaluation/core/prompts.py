"""The rows of CORE's tasks as prompts, and which of their tokens are scored: the rules of DCLM's scorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from efficientbench.config.errors import ConfigError
from efficientbench.evaluation.core.bundle import CHOICES, LANGUAGE, SCHEMA, CoreTask
from efficientbench.evaluation.scoring import Continuation, common

Row = Mapping[str, Any]


def prompts(task: CoreTask, number: int) -> list[str]:
    """Return the texts of a row behind its shots: one with each choice; of language, without and with its end."""
    row, delimiter = task.rows[number], task.delimiter
    before = "".join(f"{_whole(task, shot)}\n\n" for shot in task.examples(number))
    if task.kind == CHOICES:
        return [f"{before}{row['query']}{delimiter}{choice}" for choice in row["choices"]]
    if task.kind == SCHEMA:
        return [f"{before}{context}{delimiter}{row['continuation']}" for context in row["context_options"]]
    question = f"{before}{row['context'].strip()}{delimiter}"
    # A blank at the end would be a token of its own, and not the beginning of the next word's.
    return [question.strip(), f"{question}{row['continuation']}"]


def _whole(task: CoreTask, row: Row) -> str:
    """Return a row with its right answer."""
    if task.kind == CHOICES:
        return f"{row['query']}{task.delimiter}{row['choices'][row['gold']]}"
    if task.kind == SCHEMA:
        return f"{row['context_options'][row['gold']]}{task.delimiter}{row['continuation']}"
    return f"{row['context'].strip()}{task.delimiter}{row['continuation']}"


def continuations(
    kind: str, texts: Sequence[str], encode: Callable[[list[str]], list[list[int]]], bos: int, longest: int | None
) -> list[Continuation]:
    """Return the sequences to score, and from where on.

    Of choices what follows their common beginning is scored, of a schema their common end, of language the end. A
    sequence that is too long loses its beginning.

    Args:
        kind: of the task.
        texts: what `prompts` returns.
        encode: texts → their tokens.
        bos: the token that begins each sequence.
        longest: tokens that the model has positions for; None: any number.

    Raises:
        ConfigError: what is to be scored alone is longer than that.
    """
    sequences = [[bos, *ids] for ids in encode(list(texts))]
    if kind == LANGUAGE:
        # Where the tokenizer joins both ends into one token, that belongs to the answer.
        found = [Continuation(sequences[1], common(sequences))]
    elif kind == SCHEMA:
        shared = common([sequence[::-1] for sequence in sequences])
        found = [Continuation(sequence, max(len(sequence) - shared, 1)) for sequence in sequences]
    else:
        found = [Continuation(sequence, common(sequences)) for sequence in sequences]
    return [_cut(each, longest) for each in found]


def _cut(continuation: Continuation, longest: int | None) -> Continuation:
    # The last token is scored, and not read.
    surplus = len(continuation.tokens) - (longest or len(continuation.tokens))
    if surplus <= 0:
        return continuation
    if continuation.first <= surplus:
        raise ConfigError(
            f"core: an answer has {len(continuation.tokens) - continuation.first:,} tokens, and the model "
            f"{longest:,} positions: it cannot be scored"
        )
    return Continuation(continuation.tokens[surplus:], continuation.first - surplus)
