"""Tasks whose answer is generated text, with the calculator if the tokenizer has its tokens."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from math import comb
from statistics import fmean
from typing import TYPE_CHECKING, Any

from efficientbench.basics.errors import ConfigError, DataError, EvaluationError
from efficientbench.data_tools.chat.find_task import TASKS
from efficientbench.data_tools.chat.task import RunProgram
from efficientbench.evaluation.chat.questions import Question, Questions, standard_error
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
"""The cache of a batch has room for this many times `batch_tokens`, since most tokens are decoded one by one."""

NEEDS_CODE = (
    "its answers are programs: --allow-code runs them here, each in an interpreter of its own with limits, which is no "
    "security boundary"
)


class Generative:
    """Samples answers, and scores them with the task's own `score`."""

    def __init__(self, name: str, run: Opened, options: Options, questions: Questions) -> None:
        """Take the questions and the sampling options.

        Raises:
            ConfigError: several samples are asked for at temperature 0, and would be the same.
        """
        if options.samples > 1 and options.temperature == 0:
            raise ConfigError(
                f"--samples {options.samples}: all samples are equal at temperature 0; set --temperature, e.g. 1.0"
            )
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
        """Return an item for each question; all have the same cost."""
        return [Item(item.name) for item in self.questions.items()]

    def texts(self) -> Mapping[str, Sequence[int]]:
        """Return the tokens of each question's own text, by the item's name."""
        return self.questions.texts()

    def score(self, items: Sequence[Item]) -> Iterator[list[ItemResult]]:
        """Yield the questions' results, batch after batch."""
        asked = self.questions.of(items)
        fit = [each for each in asked if self._room(each) > 0]
        if len(fit) < len(asked):
            yield [each.result(None, False, details={"too_long": True}) for each in asked[len(fit) :]]
        budget = CACHED * self.options.batch_tokens // self.samples
        # All rows of a batch have room for the same number of new tokens.
        for room, alike in itertools.groupby(fit, self._room):
            for part in padded_parts(list(alike), self._tokens, budget):
                answers = self._answers(part, room)
                # All tensor-parallel ranks have the same answers; one scores them, so that programs run once.
                scored = zip(part, answers, strict=True) if groups.holds_loss() else ()
                yield [self._result(question, texts) for question, texts in scored]

    def _room(self, question: Question) -> int:
        """Return the most tokens of an answer: `max_new_tokens`, or fewer if the model has fewer positions left."""
        asked = self.options.max_new_tokens
        return asked if self.longest is None else min(asked, self.longest - len(question.prompt))

    def _tokens(self, question: Question) -> int:
        return len(question.prompt) + self._room(question)

    def _answers(self, questions: Sequence[Question], room: int) -> list[list[str]]:
        """Return the texts of each question's samples, each of at most `room` tokens."""
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
        # The first of several samples is what a single one would be.
        return question.result(texts[0], scores[0] == 1, details=details)

    def _score(self, question: Question, text: str, run: RunProgram) -> float:
        try:
            score = float(self.questions.task.score(question.example, text, run))
            if not math.isfinite(score):
                raise ValueError(f"the score is {score}")
            return score
        except (ConfigError, DataError, EvaluationError):
            raise
        except Exception as error:
            if self.name in TASKS:
                raise
            # A task from outside may raise anything.
            raise EvaluationError(f"{self.name}, {question.name}: {type(error).__name__}: {error}") from None

    def _run(self, ended: list[str], program: str, tests: str) -> bool:
        """Run a program and its tests, append how it ended, and return whether it passed."""
        if not self.options.allow_code:
            raise ConfigError(f"{self.name}: {NEEDS_CODE}")
        self.run.report("running a program")
        outcome = run_program(program, tests)
        ended.append(outcome.ended)
        return outcome.passed

    def summary(self, results: Mapping[str, ItemResult]) -> Summary:
        """Return the mean score, and pass@k for k = 1, 2, 4 …; a question that is too long for the model scores 0."""
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
    """Return the probability that at least one of k samples of a question is right: 1 − C(n − c, k) / C(n, k).

    The estimate is unbiased (arXiv 2107.03374, equation 1). Its expectation is that of "a hit among the first k", with
    less noise, since all n samples count.

    Args:
        samples: n, the number of samples, k or more.
        right: c, how many samples are right.
        k: how many samples may be tried, 1 or more.
    """
    return 1 - comb(samples - right, k) / comb(samples, k)
