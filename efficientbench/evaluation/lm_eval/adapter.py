"""Our models in lm-eval (EleutherAI's harness): answer its requests for log-likelihoods and texts.

Truncation, windows and first tokens are those of lm-eval's `hf` backend, so that both give a model the same figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from rich.console import Console

from efficientbench.basics.errors import ConfigError
from efficientbench.basics.grouped import grouped
from efficientbench.evaluation.evaluate import EvaluationProgress
from efficientbench.evaluation.scoring import SHORTEST_SHARED, Continuation, Scored, Scorer
from efficientbench.generation.generate import generate
from efficientbench.generation.sampling import Sampling

if TYPE_CHECKING:
    from efficientbench.generation.open_run import Opened

MAX_NEW_TOKENS = 256
"""The most tokens of a text if the task does not say; lm-eval's default."""
LENGTH_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""The keys by which tasks set that number; the first that is set counts."""
MOST_CHOICES = 16
"""The most choices of an item; a group may always have this many, however long its context is."""

Request = tuple[Any, list[int], list[int]]
"""The key under which lm-eval caches the answer, the context's tokens, and the continuation's tokens."""
Answer = tuple[float, bool]
"""The log-likelihood, and whether each token is the most likely one."""


class Adapter(TemplateLM):
    """An opened run as a model of lm-eval."""

    def __init__(self, run: Opened, batch_tokens: int, console: Console) -> None:
        """Take the run, the tokens of a batch, and the console for the progress."""
        super().__init__()
        self.run, self.console = run, console
        position = run.config.model.position.longest
        self.max_length: int = position or run.config.training.seq_len
        """The most tokens that the model reads: its positions, else the training's sequence length, as in an export."""
        self.batch = max(batch_tokens // self.max_length, 1)
        self.scorer = Scorer(run.model, position, batch_tokens)

    @property
    def eot_token_id(self) -> int:
        """Return the end-of-document token, which also precedes a text without context."""
        return self.run.tokenizer.eod_id

    @property
    def tokenizer_name(self) -> str:
        """Return the tokenizer's fingerprint, by which lm-eval tells cached requests apart."""
        return self.run.tokenizer.fingerprint

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the tokens of a text; no token is added, and names of special tokens are ordinary text."""
        return self.run.tokenizer.encode_batch([string])[0]

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[Answer]:
        """Return each continuation's log-likelihood, and whether each of its tokens is the most likely one."""
        answers: list[Answer] = [(0.0, False)] * len(requests)
        for number, answer in self._answers(requests):
            answers[number] = answer
            self.cache_hook.add_partial("loglikelihood", requests[number][0], answer)
        return answers

    def _answers(self, requests: Sequence[Request]) -> Iterator[tuple[int, Answer]]:
        """Yield the numbers of requests and their answers, batch after batch."""
        numbers = self._groups(requests)
        groups = [[self._continuation(*requests[each][1:]) for each in part] for part in numbers]
        costs = [sum(len(each.tokens) for each in group) for group in groups]
        with self._progress(len(requests), sum(costs)) as progress:
            for batch in self.scorer.score(groups):
                for group, scored in batch:
                    for number, found in zip(numbers[group], scored, strict=True):
                        yield number, _answer(found, requests[number][2])
                progress.add(sum(len(numbers[group]) for group, _ in batch), sum(costs[group] for group, _ in batch))

    def _groups(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return groups of request numbers whose context is computed once: the choices of an item follow each other.

        Requests with the same short context, such as an empty one, form a group only if their continuations are one
        token: a group is one batch.
        """

        def key(number: int) -> int | list[int]:
            _, context, end = requests[number]
            return context if len(context) >= SHORTEST_SHARED or len(end) == 1 else number

        found: list[list[int]] = []
        for _, part in groupby(range(len(requests)), key):
            numbers = list(part)
            longest = max(len(requests[each][1]) + len(requests[each][2]) for each in numbers)
            most = max(self.scorer.batch_tokens // longest, MOST_CHOICES)
            found += [numbers[first : first + most] for first in range(0, len(numbers), most)]
        return found

    def _continuation(self, context: Sequence[int], end: Sequence[int]) -> Continuation:
        if len(end) > self.max_length:
            raise ConfigError(
                f"--lm-eval: an answer has {len(end):,} tokens, and the model reads {self.max_length:,}: it cannot be "
                "scored"
            )
        tokens = [*context, *end][-(self.max_length + 1) :]
        return Continuation(tokens, len(tokens) - len(end))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each text, window by window, each token once."""
        windows: list[tuple[int, list[int], list[int]]] = []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            pairs = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, 1)
            windows += [(number, *make_disjoint_window(pair)) for pair in pairs]
        left = Counter(number for number, _, _ in windows)
        sums = [0.0] * len(requests)
        for at, (likelihood, _) in self._answers([(None, context, end) for _, context, end in windows]):
            number = windows[at][0]
            sums[number] += likelihood
            left[number] -= 1
            if left[number] == 0:
                self.cache_hook.add_partial("loglikelihood_rolling", requests[number].args, sums[number])
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text that the model adds to each context, up to the first stop text."""
        texts = [""] * len(requests)
        by_settings = grouped((repr(request.args[1]), number) for number, request in enumerate(requests))
        with self._progress(len(requests), len(requests)) as progress:
            for numbers in by_settings.values():
                numbers.sort(key=lambda number: len(requests[number].args[0]))
                for first in range(0, len(numbers), self.batch):
                    part = numbers[first : first + self.batch]
                    asked = {number: requests[number].args[0] for number in part}
                    for number, text in self._texts(asked, requests[part[0]].args[1]).items():
                        texts[number] = text
                        self.cache_hook.add_partial("generate_until", requests[number].args, text)
                    progress.add(len(part), len(part))
        return texts

    def _progress(self, requests: int, cost: float) -> EvaluationProgress:
        return EvaluationProgress("requests of lm-eval", requests, cost, self.console)

    def _texts(self, contexts: Mapping[int, str], settings: Mapping[str, Any]) -> dict[int, str]:
        """Return the continuations of one batch by the number of the request, which also seeds its sampling."""
        new = next((int(settings[key]) for key in LENGTH_KEYS if settings.get(key) is not None), MAX_NEW_TOKENS)
        if new >= self.max_length:
            raise ConfigError(f"--lm-eval: a task asks for {new:,} new tokens, and the model reads {self.max_length:,}")
        until = settings.get("until") or []
        stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
        sampled = settings.get("do_sample", True) and settings.get("temperature")
        sampling = Sampling(
            temperature=float(settings["temperature"]) if sampled else 0.0,
            top_k=int(settings["top_k"]) if settings.get("top_k") else None,
            top_p=float(settings.get("top_p") or 1.0),
        )
        # An empty context begins as a document does: after the end-of-document token.
        prompts = [
            (self.tok_encode(each) or [self.eot_token_id])[-(self.max_length - new) :] for each in contexts.values()
        ]
        written: dict[int, list[int]] = {number: [] for number in contexts}
        texts = dict.fromkeys(contexts, "")
        ended: set[int] = set()
        steps = generate(
            self.run.model, prompts, sampling, new, [self.eot_token_id], batch=len(prompts), numbers=list(contexts)
        )
        for step in steps:
            for each in step:
                row = each.row.prompt
                if each.token != self.eot_token_id:
                    written[row].append(each.token)
                    texts[row] = self.run.tokenizer.decode(written[row])
                if each.last or any(stop in texts[row] for stop in stops):
                    ended.add(row)
            if len(ended) == len(prompts):
                break
        return {number: _cut(text, stops) for number, text in texts.items()}


def _answer(scored: Scored, end: Sequence[int]) -> Answer:
    return -float(scored.losses.sum()), scored.greedy.tolist() == list(end)


def _cut(text: str, stops: Sequence[str]) -> str:
    for stop in stops:
        text = text.split(stop)[0]
    return text
