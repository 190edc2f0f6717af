"""The text that a run will read: how often it is repeated, and whether the losses will say anything of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from efficientbench.basics.errors import DataError
from efficientbench.config.schema import DataConfig
from efficientbench.metrics.formulas.definitions import speed_only_reason, text_read
from efficientbench.metrics.records.figure import count
from efficientbench.planning.plan import Plan, known_corpora


@dataclass(frozen=True)
class TextBudget:
    """The amount of text that a run will read."""

    tokens_per_parameter: float | None
    """Training tokens per parameter; None while the parameters or the steps are unknown."""
    unique_tokens: int | None
    """Approximate number of distinct tokens; None where a source is not tokenized yet, or the model writes its text."""
    epochs: float | None
    """Approximate epochs of the source that is repeated most; None where its size is not known, or as above."""
    begun: bool
    """Whether the run begins with the weights of another run, whose text is not counted here."""
    at_least: bool = False
    """Whether `epochs` is the fewest that there can be: no token has less than a byte."""

    @property
    def speed_only_reason(self) -> str | None:
        """Return why the run's losses will say nothing about its architecture; None where they may."""
        return speed_only_reason(None if self.begun else self.tokens_per_parameter, self.epochs)

    @property
    def epochs_text(self) -> str | None:
        """Return the epochs with what their number is; None where it is not known."""
        if self.epochs is None:
            return None
        return f"{'at least' if self.at_least else 'about'} {self.epochs:{',.0f' if self.epochs >= 1000 else '.3g'}}"

    def __str__(self) -> str:
        epochs = "" if self.epochs is None else f", {self.epochs_text} epochs of the text"
        only = self.speed_only_reason
        size = "n/a" if self.tokens_per_parameter is None else f"{self.tokens_per_parameter:.3g}"
        return f"{size} tokens per parameter{epochs}" + (f"; speed only: {only}" if only else "")


def length_line(plan: Plan) -> str:
    """Return the line with a run's length, how often it reads its text, and whether its losses will say anything."""
    budget = plan.budget
    length = f"{plan.length}, {count(budget.tokens)} tokens" if budget.counted else plan.length
    try:
        text = text_of(plan)
    except DataError as error:
        return f"of {length}; data.path: {error}"
    longer = "; training.tokens=20x trains to a loss" if budget.counted and text.speed_only_reason else ""
    return f"of {length}: {text}{longer}"


def text_of(plan: Plan) -> TextBudget:
    """Return the text that a run will read, by the sources' manifests, or by their sizes where one has none yet.

    Raises:
        DataError: a source cannot be used, as one that is missing, or a manifest is damaged.
    """
    counted = tokenized(plan.config.data)
    if counted is not None:
        return text_budget(plan, counted)
    try:
        most = [_most_tokens(source) for source in plan.config.data.sources]
    except ModuleNotFoundError:
        # The base install plans without the libraries that read text.
        return text_budget(plan, None)
    known = [tokens for tokens in most if tokens is not None]
    return text_budget(plan, known if len(known) == len(most) else None, at_least=True)


def _most_tokens(source: str | None) -> int | None:
    if not source:
        # The sample needs none of the libraries that read files, which take time to load.
        from efficientbench.data_tools.tokenizing.embedded import most_embedded_bytes

        return most_embedded_bytes()
    from efficientbench.data_tools.tokenizing.corpus import most_tokens

    return most_tokens(Path(source))


def text_budget(plan: Plan, corpus_tokens: Sequence[int] | None, at_least: bool = False) -> TextBudget:
    """Return the text that a run will read.

    `corpus_tokens`: those of each source; None: they are unknown. `at_least`: whether they are the most that the
    sources can have, so that the epochs are the fewest.
    """
    per_parameter, init = plan.budget.tokens_per_parameter, plan.config.init
    begun = init.run is not None and not init.branches
    writes = plan.config.training.objective == "rl"
    if corpus_tokens is None or writes or not plan.budget.counted:
        return TextBudget(per_parameter, None, None, begun)
    data = plan.config.data
    # Documents are split by number, so that a split's share of the tokens is approximate.
    training = [max(round(tokens * data.split[0] / sum(data.split)), 1) for tokens in corpus_tokens]
    unique, epochs = text_read(plan.budget.tokens, list(zip(data.weights, training, strict=True)))
    return TextBudget(per_parameter, None if at_least else unique, epochs, begun, at_least)


def tokenized(data: DataConfig) -> list[int] | None:
    """Return the number of tokens of each source, by the manifest beside its pair; None if one has no manifest.

    Raises:
        DataError: a manifest is damaged.
    """
    corpora = known_corpora(data)
    return None if corpora is None else [corpus.tokens for corpus in corpora]
