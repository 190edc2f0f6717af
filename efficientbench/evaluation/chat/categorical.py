"""Multiple-choice tasks: the answer is the letter with the largest logit after the question.

B = questions, V = vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from efficientbench.basics.errors import DataError, GenerationError
from efficientbench.evaluation.chat.questions import Question, Questions, standard_error
from efficientbench.evaluation.scoring import padded_parts, rounded
from efficientbench.evaluation.task import Item, ItemResult, Options, Summary
from efficientbench.generation.decoder import whole_logits

if TYPE_CHECKING:
    from efficientbench.generation.open_run import Opened


class Categorical:
    """Answers a batch of questions with one forward pass, without generating."""

    def __init__(self, name: str, run: Opened, options: Options, questions: Questions) -> None:
        """Look up the tokens of the letters.

        Raises:
            DataError: a letter is not exactly one token.
        """
        self.name, self.run, self.questions, self.budget = name, run, questions, options.batch_tokens
        self.settings: Mapping[str, Any] = questions.settings
        self.longest = run.config.model.position.longest
        self.letters: dict[str, int] = {}
        for letter in sorted({each for question in questions.by_name.values() for each in question.example.choices}):
            ids = questions.renderer.encode(letter).tolist()
            if len(ids) != 1:
                raise DataError(
                    f"{name}: {letter!r} is {len(ids)} tokens in the tokenizer of the run, and must be one: a question "
                    "is answered by the logit of a letter"
                )
            self.letters[letter] = ids[0]

    def items(self) -> Sequence[Item]:
        """Return an item for each question."""
        return self.questions.items()

    def texts(self) -> Mapping[str, Sequence[int]]:
        """Return the tokens of each question's own text, by the item's name."""
        return self.questions.texts()

    def score(self, items: Sequence[Item]) -> Iterator[list[ItemResult]]:
        """Yield the questions' results, batch after batch."""
        asked = self.questions.of(items)
        fit = [each for each in asked if self.longest is None or len(each.prompt) <= self.longest]
        if len(fit) < len(asked):
            yield [each.result(None, False, details={"too_long": True}) for each in asked[len(fit) :]]
        for part in padded_parts(fit, lambda each: len(each.prompt), self.budget):
            yield self._score(part)

    @torch.no_grad()
    def _score(self, questions: Sequence[Question]) -> list[ItemResult]:
        lengths = torch.tensor([len(each.prompt) for each in questions])
        tokens = torch.zeros(len(questions), rounded(int(lengths.max()), self.longest), dtype=torch.int64)
        for row, question in enumerate(questions):
            tokens[row, : lengths[row]] = torch.tensor(question.prompt)
        model = self.run.model
        device = next(model.parameters()).device
        logits = model(tokens.to(device), only=(lengths - 1).to(device))
        # [B, V]
        losses = -whole_logits(model, logits)[:, 0].float().log_softmax(dim=1).cpu()
        return [self._result(question, row) for question, row in zip(questions, losses, strict=True)]

    def _result(self, question: Question, losses: torch.Tensor) -> ItemResult:
        example = question.example
        of_choices = losses[[self.letters[letter] for letter in example.choices]].tolist()
        if not all(map(math.isfinite, of_choices)):
            raise GenerationError(f"{self.name}, {question.name}: the losses are {of_choices}: the weights are broken")
        answer = example.choices[of_choices.index(min(of_choices))]
        right = answer == example.reference
        return question.result(answer, right, losses=tuple(of_choices), details={"gold": example.reference})

    def summary(self, results: Mapping[str, ItemResult]) -> Summary:
        """Return the accuracy; a question that is too long for the model counts as wrong."""
        right = [float(bool(result.right)) for result in results.values()]
        too_long = sum("too_long" in result.details for result in results.values())
        # The accuracy of guessing.
        choices = [len(self.questions.by_name[name].example.choices) for name in results]
        chance = sum(1 / each for each in choices) / len(choices)
        parts = {"standard_error": standard_error(right), "chance": chance, "too_long": too_long}
        return Summary({"accuracy": fmean(right)}, parts=parts)
