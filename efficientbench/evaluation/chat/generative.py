"""Tasks whose answer is text that the model writes, with the calculator where it has one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from math import comb
from statistics import fmean
from typing import TYPE_CHECKING, Any

from efficientbench.basics.errors import ConfigError, DataError, EvaluationError
from efficientbench.data_tools.chat.task import RunProgram
from efficientbench.evaluation.chat.questions import SOURCES, Question, Questions, standard_error
from efficientbench.evaluation.code.sandbox import run_program
from efficientbench.evaluation.scoring import padded_parts
from efficientbench.evaluation.task import Item, ItemResult, Options, Summary
from efficientbench.generation.calls import find_calculator, spoken
from efficientbench.generation.generate import generate
from efficientbench.generation.sampling import Sampling
from efficientbench.training import groups

if TYPE_CHECKING:
    from efficientbench.generation.open_run import Opened

CACHED = 8
"""Times `batch_tokens`: room for the tokens of rows that are decoded at once, most of which come one by one."""

NEEDS_CODE = (
    "its answers are programs: --allow-code runs them here, each in an interpreter of its own with limits, which is no "
    "security boundary"
)


class Generative:
    """Samples answers, and scores them as the task says."""

    def __init__(self, name: str, run: Opened, options: Options, questions: Questions) -> None:
        """Take the questions, and how answers are sampled.

        Raises:
            ConfigError: several samples would all be the same.
        """
        if options.samples > 1 and options.temperature == 0:
            raise ConfigError(f"--samples {options.samples}: all are the same without --temperature, such as 1.0")
        self.name, self.run, self.options, self.questions = name, run, options, questions
        self.samples, self.sampling = options.samples, Sampling(options.temperature)
        self.calculator = find_calculator(questions.renderer, run.tokenizer.decode)
        self.longest = run.config.model.position.longest
        self.settings: Mapping[str, Any] = {
            **questions.settings,
            "samples": options.samples,
            "temperature": options.temperature,
            "max_new_tokens": options.max_new_tokens,
            "calculator": self.calculator is not None,
        }

    def items(self) -> Sequence[Item]:
        """Return the questions, each of which takes about as long as another."""
        return [Item(item.name) for item in self.questions.items()]

    def texts(self) -> Mapping[str, Sequence[int]]:
        """Return the tokens of what each question asks."""
        return self.questions.texts()

    def score(self, items: Sequence[Item]) -> Iterator[list[ItemResult]]:
        """Yield the results of questions that are answered together."""
        asked = self.questions.of(items)
        fit = [each for each in asked if self._room(each) > 0]
        if len(fit) < len(asked):
            yield [each.result(None, False, details={"too_long": True}) for each in asked[len(fit) :]]
        budget = CACHED * self.options.batch_tokens // self.samples
        # All rows of a batch have room for as many tokens.
        for room, alike in itertools.groupby(fit, self._room):
            for part in padded_parts(list(alike), self._tokens, budget):
                answers = self._answers(part, room)
                # Tensor-parallel ranks have written them together, and programs are to run once.
                scored = zip(part, answers, strict=True) if groups.holds_loss() else ()
                yield [self._result(question, texts) for question, texts in scored]

    def _room(self, question: Question) -> int:
        """Return how many tokens an answer may have: as many as asked for, or as there are positions left."""
        asked = self.options.max_new_tokens
        return asked if self.longest is None else min(asked, self.longest - len(question.prompt))

    def _tokens(self, question: Question) -> int:
        return len(question.prompt) + self._room(question)

    def _answers(self, questions: Sequence[Question], room: int) -> list[list[str]]:
        """Return the texts of each question's samples, of up to `room` tokens."""
        renderer, tokenizer = self.questions.renderer, self.run.tokenizer
        rows: dict[tuple[int, int], list[int]] = {}
        steps = generate(
            self.run.model,
            [each.prompt for each in questions],
            self.sampling,
            room,
            stop=[renderer.end_id, tokenizer.eod_id],
            samples=self.samples,
            batch=len(questions) * self.samples,
            calculator=self.calculator,
            numbers=[each.number for each in questions],
        )
        for emitted in steps:
            for each in emitted:
                rows.setdefault((each.row.prompt, each.row.sample), []).append(each.token)
        special = {**renderer.token_ids, "": tokenizer.eod_id}
        return [
            [tokenizer.decode(spoken(rows[question.number, sample], special)) for sample in range(self.samples)]
            for question in questions
        ]

    def _result(self, question: Question, texts: Sequence[str]) -> ItemResult:
        scores, programs = [], []
        for text in texts:
            ended: list[str] = []
            scores.append(self._score(question, text, functools.partial(self._run, ended)))
            programs.append(ended)
        details: dict[str, Any] = {"gold": question.example.reference, "scores": scores}
        if len(texts) > 1:
            details["samples"] = list(texts)
        if any(programs):
            details["programs"] = programs
        # Of several samples the first is what one alone would be.
        return question.result(texts[0], scores[0] == 1, details=details)

    def _score(self, question: Question, text: str, run: RunProgram) -> float:
        try:
            return float(self.questions.task.score(question.example, text, run))
        except (ConfigError, DataError, EvaluationError):
            raise
        except Exception as error:
            if self.name in SOURCES:
                raise
            # Code of others fails in any way.
            raise EvaluationError(f"{self.name}, {question.name}: {type(error).__name__}: {error}") from None

    def _run(self, ended: list[str], program: str, tests: str) -> bool:
        """Run a program and its tests, and add how it ended."""
        if not self.options.allow_code:
            raise ConfigError(f"{self.name}: {NEEDS_CODE}")
        outcome = run_program(program, tests)
        ended.append(outcome.ended)
        return outcome.passed

    def summary(self, results: Mapping[str, ItemResult]) -> Summary:
        """Return the mean score, and pass@k for 1, 2, 4 … samples; what is too long for the model counts as wrong."""
        scores = [result.details.get("scores", [0.0] * self.samples) for result in results.values()]
        means = [fmean(each) for each in scores]
        figures: dict[str, float | None] = {"accuracy": fmean(means)}
        k = 1
        while k <= self.samples and self.samples > 1:
            figures[f"pass_at_{k}"] = fmean(
                pass_at_k(self.samples, sum(one == 1 for one in each), k) for each in scores
            )
            k *= 2
        too_long = sum("too_long" in result.details for result in results.values())
        parts: dict[str, Any] = {"standard_error": standard_error(means), "too_long": too_long}
        if self.options.allow_code:
            parts["sandbox_held"] = dict(run_program("").held)
        return Summary(figures, parts=parts)


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Return how likely at least one of k samples of a question is right: 1 − C(n − c, k) / C(n, k).

    The estimate is unbiased (arXiv 2107.03374, equation 1). It has the mean of "a hit among the first k", and less
    noise, since all n samples count.

    Args:
        samples: n, k or more.
        right: c, how many of them are right.
        k: 1 or more.
    """
    return 1 - comb(samples - right, k) / comb(samples, k)
