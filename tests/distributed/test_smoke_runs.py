"""Smoke runs of every kind of model learn a real text, by their own settings; one by its script: test_matrix.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.cells import train
from support.ranks import Ranks

from efficientbench.architecture.backbone import CHOICES
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.data_tools.tokenizing.corpus import prepare_corpus
from efficientbench.data_tools.tokens.inspection import pair_statistics

pytestmark = pytest.mark.proof

MARGIN_NATS = 0.3


def smallest_of_each() -> list[str]:
    """Return a run of each attention variant, of each pattern, of experts, and of each published model.

    The others have other positions, query groups or sizes: numerics/test_every_variant.py teaches each smoke model. The
    runs of chat.yaml begin with each other's weights.
    """
    names: dict[tuple[object, ...], str] = {}
    configs = [resolve(run.name, smoke=True) for run in load_matrix().all_runs if run.suite != "chat"]
    for config in sorted(configs, key=lambda config: config.model.hidden_size):
        model = config.model
        key = model.attention.kind, model.pattern, model.moe is not None, *(getattr(model, key) for key in CHOICES)
        names.setdefault(key, f"{config.variant}_{config.size}")
    return list(names.values())


@pytest.mark.parametrize("name", smallest_of_each())
def test_each_kind_of_smoke_run_lowers_its_loss(name: str, ranks: Callable[[int], Ranks], cache: str) -> None:
    config = resolve(name, smoke=True, overrides=[f"data.cache={cache}"])
    corpus = prepare_corpus(None, None, Path(cache), config.data.trained_vocab_size)
    [observed] = ranks(1).call(train, config, corpus.prefix, config.training.steps)
    # The loss of the best model without context.
    unigram_nats = pair_statistics(corpus.prefix, None).unigram_entropy_nats
    print(f"{name}: validation loss {observed.validation_losses[-1]:.3f}, unigram entropy {unigram_nats:.3f}")
    assert observed.validation_losses[-1] < unigram_nats - MARGIN_NATS
