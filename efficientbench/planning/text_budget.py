"""The text that a planned run reads, against its model and its corpora."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from efficientbench.config.schema import DataConfig
from efficientbench.metrics.definitions import speed_only_reason, text_read
from efficientbench.planning.plan import Plan

if TYPE_CHECKING:
    from efficientbench.data_tools.manifest import Corpus


@dataclass(frozen=True)
class TextBudget:
    """What a run will read of its text."""

    tokens_per_parameter: float | None
    """None where the model's parameters are not known before it is built, or its steps before its text is."""
    unique_tokens: int | None
    """About; None where a source is not tokenized yet, or the model writes what it learns from."""
    epochs: float | None
    """About, of the source that is repeated most; None where a source is not tokenized yet."""
    begun: bool
    """Whether the run begins with weights of another one, which has read text, too."""

    @property
    def speed_only_reason(self) -> str | None:
        """Return why the run's losses will say nothing about its architecture; None where they may."""
        return speed_only_reason(None if self.begun else self.tokens_per_parameter, self.epochs)

    def __str__(self) -> str:
        epochs = "" if self.epochs is None else f", about {self.epochs:.3g} epochs of the text"
        only = self.speed_only_reason
        size = "n/a" if self.tokens_per_parameter is None else f"{self.tokens_per_parameter:.3g}"
        return f"{size} tokens per parameter{epochs}" + (f"; speed only: {only}" if only else "")


def text_budget(plan: Plan, corpus_tokens: Sequence[int] | None) -> TextBudget:
    """Return what a run will read; `corpus_tokens`: tokens of each source; None where they are not known."""
    per_parameter, begun = plan.budget.tokens_per_parameter, plan.config.init.run is not None
    writes = plan.config.training.objective == "rl"
    if corpus_tokens is None or writes or not plan.budget.counted:
        return TextBudget(per_parameter, None, None, begun)
    data = plan.config.data
    # Documents are split by number, so that the tokens of a split are about as many.
    training = [max(round(tokens * data.split[0] / sum(data.split)), 1) for tokens in corpus_tokens]
    unique, epochs = text_read(plan.budget.tokens, list(zip(data.weights, training, strict=True)))
    return TextBudget(per_parameter, unique, epochs, begun)


def tokenized(data: DataConfig) -> list[int] | None:
    """Return the tokens of each source from the manifest beside its pair; None where one has none.

    Raises:
        DataError: a manifest is damaged.
    """
    corpora = known_corpora(data)
    return None if corpora is None else [corpus.tokens for corpus in corpora]


def known_corpora(data: DataConfig) -> list[Corpus] | None:
    """Return the sources that are tokenized pairs with a manifest; None where one is not.

    Raises:
        DataError: a manifest is damaged.
    """
    sources = [source for source in data.sources if source is not None]
    if len(sources) < len(data.sources):
        return None
    # Here, since it loads numpy: most plans are of a corpus that is yet to be downloaded.
    from efficientbench.data_tools.manifest import load_corpus, manifest_path

    # The current folder has no name that a pair could have.
    prefixes = [prefix for source in sources if (prefix := _prefix(source)).name]
    manifests = [manifest_path(prefix) for prefix in prefixes]
    # Not by Path, which raises for names that no file system takes.
    if len(prefixes) < len(sources) or not all(map(os.path.isfile, manifests)):
        return None
    return [load_corpus(manifest) for manifest in manifests]


def _prefix(source: str) -> Path:
    path = Path(source)
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path
