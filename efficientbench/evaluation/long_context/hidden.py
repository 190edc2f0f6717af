"""Passkey and needle: hide a number in a long text that is made on the spot, and ask for it at the end.

`passkey` (after arXiv 2305.16300) hides it among repeated sentences, `needle` (after RULER, arXiv 2404.06654) in
real text. Both are for base models: an answer is right if each of its tokens is the most likely one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from efficientbench.basics.errors import ConfigError
from efficientbench.evaluation.long_context.lengths import choose_lengths
from efficientbench.evaluation.loss import joined, own_validation, read_text
from efficientbench.evaluation.scoring import Continuation, Scorer
from efficientbench.evaluation.task import Item, ItemResult, Options, Summary, prompt_hash

if TYPE_CHECKING:
    from efficientbench.generation.open_run import Opened


DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The positions of the number, as the share of the filler before it."""
REPEATS = 10
"""Items per length and depth, unless `limit` is set."""
DIGITS = 5
SEED = 0


@dataclass(frozen=True)
class Wording:
    """A task's sentences; `{}` stands for the name that is asked for, `{number}` for its number."""

    opening: str
    hidden: str
    question: str
    names: tuple[str, ...] = ("",)


PASSKEY = Wording(
    "A pass key stands somewhere in this text. Remember it: it is asked for in the end.\n",
    "\nThe pass key is {number}. Remember it. {number} is the pass key.\n",
    "\nWhat is the pass key? The pass key is",
)
FILLER = "The river is wide. The hill is low. The road is long. We walk on, and we come back. "
NEEDLE = Wording(
    "",
    "\nThe secret number of {} is {number}.\n",
    "\nWhat is the secret number of {}? The secret number of {} is",
    ("Lisbon", "Nairobi", "Osaka", "Quito", "Oslo", "Perth", "Cairo", "Boston"),
)


@dataclass(frozen=True)
class Cell:
    """The length and depth of an item."""

    length: int
    """Tokens of the item, answer included."""
    depth: float


class Hidden:
    """The task `passkey` or `needle`."""

    def __init__(self, name: str, run: Opened, options: Options, wording: Wording) -> None:
        """Choose the lengths, and read the filler text.

        Raises:
            ConfigError: no length has room for the question, or the text is missing.
            DataError: the text cannot be read.
        """
        self.name, self.run, self.wording, self.budget = name, run, wording, options.batch_tokens
        self.trained = run.config.training.seq_len
        self.repeats = options.limit or REPEATS
        self.filler, source = self._filler(options)
        lengths = choose_lengths(run.config, options.lengths)
        frames = {length: self._frame(length) for length in lengths}
        self.lengths = [length for length, frame in frames.items() if length > frame]
        if not self.lengths:
            least = min(frames.values())
            raise ConfigError(f"{name}: the question alone has {least} tokens: give longer ones by --lengths")
        self.cells = {
            f"{length}/{depth:g}/{repeat}": (Cell(length, depth), repeat)
            for length, depth, repeat in itertools.product(self.lengths, DEPTHS, range(self.repeats))
        }
        self.settings: Mapping[str, Any] = {
            "lengths": self.lengths,
            "depths": DEPTHS,
            "repeats": self.repeats,
            "text_sha256": prompt_hash(self.filler.tobytes()),
            "text": source,
        }

    def _filler(self, options: Options) -> tuple[np.ndarray, str]:
        """Return the tokens of the filler, which is repeated if it is too short, and its description."""
        if self.wording is PASSKEY:
            return np.array(self._ids(FILLER), "<i8"), "sentences that repeat"
        text = own_validation(options.folder) if options.text is None else read_text(options.text, self.run, None)
        return joined(text.documents, self.run.tokenizer.eod_id).astype("<i8"), text.source

    def _ids(self, text: str) -> list[int]:
        return self.run.tokenizer.encode_batch([text])[0] if text else []

    def items(self) -> Sequence[Item]:
        """Return an item for each length, depth and repeat."""
        return [Item(name, cell.length) for name, (cell, _) in self.cells.items()]

    def prompt(self, cell: Cell, repeat: int) -> tuple[list[int], list[int]]:
        """Return the tokens of an item's prompt and of its answer; together they have the cell's length."""
        random, which, number = self._drawn(cell, repeat)
        room = cell.length - len(self._around(which, number, 0))
        # Each item takes another piece of the text; repeated sentences begin with the first one.
        begin = 0 if self.wording is PASSKEY else int(random.integers(len(self.filler)))
        tokens = self._around(which, number, round(cell.depth * room), room, begin)
        answer = self._answer(number)
        return tokens[: -len(answer)], answer

    def _drawn(self, cell: Cell, repeat: int) -> tuple[np.random.Generator, int, int]:
        """Return an item's random numbers, and which name and which number they gave it."""
        random = np.random.default_rng([SEED, cell.length, int(100 * cell.depth), repeat])
        number = int(random.integers(10 ** (DIGITS - 1), 10**DIGITS))
        return random, int(random.integers(len(self.wording.names))), number

    def _frame(self, length: int) -> int:
        """Return the most tokens of an item of a length without filler: numbers differ in theirs."""
        items = itertools.product(DEPTHS, range(self.repeats))
        drawn = (self._drawn(Cell(length, depth), repeat)[1:] for depth, repeat in items)
        return max(len(self._around(which, number, 0)) for which, number in drawn)

    def _answer(self, number: int) -> list[int]:
        return self._ids(f" {number}")

    def _around(self, which: int, number: int, before: int, room: int = 0, begin: int = 0) -> list[int]:
        """Return all tokens of an item with `room` tokens of filler, `before` of them ahead of the number."""
        name, wording = self.wording.names[which], self.wording
        filler = np.take(self.filler, range(begin, begin + room), mode="wrap").tolist()
        hidden = self._ids(wording.hidden.format(name, number=number))
        question = self._ids(wording.question.format(name, name))
        opening = [self.run.tokenizer.eod_id, *self._ids(wording.opening)]
        return [*opening, *filler[:before], *hidden, *filler[before:], *question, *self._answer(number)]

    def score(self, items: Sequence[Item]) -> Iterator[list[ItemResult]]:
        """Yield the items' results, batch after batch."""
        prompts = [self.prompt(*self.cells[item.name]) for item in items]
        groups = [[Continuation([*prompt, *answer], len(prompt))] for prompt, answer in prompts]
        scorer = Scorer(self.run.model, self.run.config.model.position.longest, self.budget)
        for part in scorer.score(groups):
            results = []
            for at, [scored] in part:
                prompt, answer = prompts[at]
                found = scored.greedy.tolist()
                shown = self.run.tokenizer.decode(found)
                hashed = prompt_hash(np.array(prompt, "<i8").tobytes())
                gold = {"gold": self.run.tokenizer.decode(answer)}
                results.append(ItemResult(items[at].name, hashed, shown, found == answer, (scored.mean,), gold))
            yield results

    def summary(self, results: Mapping[str, ItemResult]) -> Summary:
        """Return the accuracy within and beyond the trained length, and the right answers of each cell."""
        right: dict[Cell, list[bool]] = {}
        for name, result in results.items():
            right.setdefault(self.cells[name][0], []).append(bool(result.right))
        within = [each for cell, found in right.items() if cell.length <= self.trained for each in found]
        beyond = [each for cell, found in right.items() if cell.length > self.trained for each in found]
        figures = {"accuracy_within": _share(within), "accuracy_beyond": _share(beyond)}
        reasons = {"accuracy_within": "no length within the trained one", "accuracy_beyond": "no length beyond it"}
        grid = [
            {"length": cell.length, "depth": cell.depth, "items": len(found), "right": sum(found)}
            for cell, found in sorted(right.items(), key=lambda each: (each[0].length, each[0].depth))
        ]
        unavailable = {name: reasons[name] for name, value in figures.items() if value is None}
        return Summary(figures, unavailable, {"trained_tokens": self.trained, "grid": grid})


def _share(right: Sequence[bool]) -> float | None:
    return sum(right) / len(right) if right else None
