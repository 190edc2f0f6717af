"""The task `core`: the accuracies of a bundle's tasks, and CORE, their centred mean, if the bundle has all 22."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from efficientbench.basics.errors import ConfigError
from efficientbench.evaluation.core.bundle import CHOICES, LANGUAGE, NAMES, SCHEMA, Bundle, CoreTask, read_bundle
from efficientbench.evaluation.scoring import Continuation, Scored, Scorer, common
from efficientbench.evaluation.task import Item, ItemResult, Options, Summary, prompt_hash

if TYPE_CHECKING:
    from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
    from efficientbench.generation.open_run import Opened
    from efficientbench.model.gpt import GPT


Row = Mapping[str, Any]


def prompts(task: CoreTask, number: int) -> list[str]:
    """Return a row's texts after its shots: one per choice; for language modeling without and with the answer."""
    row, delimiter = task.rows[number], task.delimiter
    before = "".join(f"{_whole(task, shot)}\n\n" for shot in task.examples(number))
    if task.kind == CHOICES:
        return [f"{before}{row['query']}{delimiter}{choice}" for choice in row["choices"]]
    if task.kind == SCHEMA:
        return [f"{before}{context}{delimiter}{row['continuation']}" for context in row["context_options"]]
    question = f"{before}{row['context'].strip()}{delimiter}"
    # A trailing blank would be a token of its own instead of the beginning of the next word's token.
    return [question.strip(), f"{question}{row['continuation']}"]


def _whole(task: CoreTask, row: Row) -> str:
    """Return a row's text with the right answer."""
    if task.kind == CHOICES:
        return f"{row['query']}{task.delimiter}{row['choices'][row['gold']]}"
    if task.kind == SCHEMA:
        return f"{row['context_options'][row['gold']]}{task.delimiter}{row['continuation']}"
    return f"{row['context'].strip()}{task.delimiter}{row['continuation']}"


def continuations(
    kind: str, texts: Sequence[str], encode: Callable[[list[str]], list[list[int]]], bos: int, longest: int | None
) -> list[Continuation]:
    """Return the sequences to score, each with its first scored token.

    Of multiple choices, the tokens after the common beginning are scored; of a schema, the common end; of language
    modeling, the answer. A sequence that is too long loses its beginning.

    Args:
        kind: the task's type, a key of KEYS.
        texts: the texts that `prompts` returns.
        encode: returns the tokens of texts.
        bos: the token that begins each sequence.
        longest: the model's number of positions; None: unlimited.

    Raises:
        ConfigError: the scored tokens alone exceed the model's positions.
    """
    sequences = [[bos, *ids] for ids in encode(list(texts))]
    if kind == LANGUAGE:
        # A token into which the tokenizer joins question and answer belongs to the answer.
        found = [Continuation(sequences[1], common(sequences))]
    elif kind == SCHEMA:
        shared = common([sequence[::-1] for sequence in sequences])
        found = [Continuation(sequence, max(len(sequence) - shared, 1)) for sequence in sequences]
    else:
        found = [Continuation(sequence, common(sequences)) for sequence in sequences]
    return [_cut(each, longest) for each in found]


def _cut(continuation: Continuation, longest: int | None) -> Continuation:
    # The last token is scored, but the model does not read it.
    surplus = len(continuation.tokens) - (longest or len(continuation.tokens))
    if surplus <= 0:
        return continuation
    if continuation.first <= surplus:
        raise ConfigError(
            f"core: an answer has {len(continuation.tokens) - continuation.first:,} tokens, and the model "
            f"{longest:,} positions: it cannot be scored"
        )
    return Continuation(continuation.tokens[surplus:], continuation.first - surplus)


WINDOW = 256
"""Items of a task that are rendered at once, and batched by length."""
BOS = "<|bos|>"


class Core:
    """Scores the rows of all tasks; renders the few-shot prompts only when needed, since they are long."""

    name = "core"

    def __init__(
        self, model: GPT, tokenizer: TextTokenizer, bundle: Bundle, longest: int | None, limit: int | None, budget: int
    ) -> None:
        """Take the model, the bundle and the limits.

        Args:
            model: the model, in evaluation mode.
            tokenizer: the model's tokenizer; its `<|bos|>`, or else its end-of-document token, begins each prompt.
            bundle: the tasks.
            longest: the model's number of positions; None: unlimited.
            limit: the most rows of a task, to which the bundle was cut.
            budget: the most tokens of a batch, about.
        """
        self.scorer = Scorer(model, longest, budget)
        self.tokenizer, self.bundle, self.longest = tokenizer, bundle, longest
        self.bos = tokenizer.special_tokens().get(BOS, tokenizer.eod_id)
        self.settings: Mapping[str, Any] = {
            "limit": limit,
            "longest": longest,
            "eval_meta_data_sha256": bundle.baselines_sha256,
            "tasks": {name: _facts(task) for name, task in bundle.tasks.items()},
        }

    @classmethod
    def of(cls, run: Opened, options: Options) -> Core:
        """Return the task for the bundle that the options name.

        Raises:
            ConfigError, DataError: see `read_bundle`.
        """
        bundle = read_bundle(options.data_folder("core"), options.limit)
        longest = run.config.model.position.longest
        return cls(run.model, run.tokenizer, bundle, longest, options.limit, options.batch_tokens)

    def items(self) -> Sequence[Item]:
        """Return an item for each row of each task; its cost is the characters of the row and of average shots."""
        found = []
        for name, task in self.bundle.tasks.items():
            sizes = [sum(len(str(value)) for value in row.values()) for row in task.rows]
            shots = task.shots * sum(sizes) / len(sizes)
            found += [Item(f"{name}/{number}", size + shots) for number, size in enumerate(sizes)]
        return found

    def texts(self) -> Mapping[str, Sequence[int]]:
        """Return the tokens of each row's question or context, without its shots, by the item's name."""
        rows = {f"{name}/{at}": row for name, task in self.bundle.tasks.items() for at, row in enumerate(task.rows)}
        encoded = self.tokenizer.encode_batch([_own_text(row) for row in rows.values()])
        return dict(zip(rows, encoded, strict=True))

    def score(self, items: Sequence[Item]) -> Iterator[list[ItemResult]]:
        """Yield the items' results, task after task."""
        numbers: dict[str, list[int]] = {}
        for item in items:
            name, _, number = item.name.partition("/")
            numbers.setdefault(name, []).append(int(number))
        for name, of_task in numbers.items():
            for first in range(0, len(of_task), WINDOW):
                yield from self._score(self.bundle.tasks[name], of_task[first : first + WINDOW])

    def _score(self, task: CoreTask, numbers: Sequence[int]) -> Iterator[list[ItemResult]]:
        texts = [prompts(task, number) for number in numbers]
        encode = self.tokenizer.encode_batch
        groups = [continuations(task.kind, each, encode, self.bos, self.longest) for each in texts]
        for batch in self.scorer.score(groups):
            yield [
                self._result(task, numbers[at], texts[at], [each.tokens[each.first :] for each in groups[at]], scored)
                for at, scored in batch
            ]

    def _result(
        self, task: CoreTask, number: int, texts: Sequence[str], ends: Sequence[Sequence[int]], scored: Sequence[Scored]
    ) -> ItemResult:
        means = [each.mean for each in scored]
        details: dict[str, Any] = {"tokens": [len(end) for end in ends]}
        answer: Any
        if task.kind == LANGUAGE:
            answer = self.tokenizer.decode(scored[0].greedy.tolist())
            right = bool(np.array_equal(scored[0].greedy, ends[0]))
        else:
            # `min` as in the reference: the first of equal losses, and NaN only if it comes first.
            answer = min(range(len(means)), key=means.__getitem__)
            right = answer == task.rows[number]["gold"]
            details["gold"] = task.rows[number]["gold"]
        losses = tuple(None if math.isnan(mean) else mean for mean in means)
        return ItemResult(f"{task.name}/{number}", prompt_hash("\0".join(texts)), answer, right, losses, details)

    def summary(self, results: Mapping[str, ItemResult]) -> Summary:
        """Return CORE and the accuracy of each of the 22 tasks."""
        parts, figures, absent = {}, {}, dict(self.bundle.absent)
        for name, task in self.bundle.tasks.items():
            own = [results[item] for number in range(len(task.rows)) if (item := f"{name}/{number}") in results]
            if not own:
                absent[name] = "none of its items is left"
                continue
            right = [bool(result.right) for result in own]
            accuracy = sum(right) / len(right)
            centred = (accuracy - task.baseline) / (1 - task.baseline)
            parts[name] = {"accuracy": accuracy, "centred": centred, "items": len(right), **_facts(task)}
            figures[name] = accuracy
        core, unavailable = None, {name: absent[name] for name in NAMES if name in absent}
        if absent:
            named = ", ".join(list(absent)[:3]) + ", …" * (len(absent) > 3)
            unavailable["core"] = f"{len(absent)} of the 22 tasks of CORE are missing: {named}"
        else:
            core = sum(part["centred"] for part in parts.values()) / len(NAMES)
        return Summary({"core": core, **{name: figures.get(name) for name in NAMES}}, unavailable, parts)


def _own_text(row: Mapping[str, Any]) -> str:
    options = row.get("context_options")
    return options[row["gold"]] if options else row.get("query", row.get("context", ""))


def _facts(task: CoreTask) -> dict[str, Any]:
    return {"type": task.kind, "shots": task.shots, "baseline": task.baseline, "sha256": task.sha256}
