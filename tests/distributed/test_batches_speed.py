"""Batches come from the mapped files far faster than the quickest of the smoke models consumes them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from support.ranks import Ranks
from support.reading_speed import reading_and_training_s

from efficientbench.config.load import resolve
from efficientbench.data_tools.corpus import prepare_corpus


@pytest.mark.proof
@pytest.mark.alone
def test_batches_are_50_times_faster_than_training(ranks: Callable[[int], Ranks], cache: str) -> None:
    config = resolve("mla_0.5B", smoke=True, overrides=[f"data.cache={cache}"])
    corpus = prepare_corpus(None, None, Path(cache), config.data.trained_vocab_size)
    pairs = ranks(1).call(reading_and_training_s, config, [corpus.prefix], corpus.vocab_size, 20)[0]
    reading_s, training_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    assert training_s > 50 * reading_s, f"reading takes {reading_s / training_s:.1%} of a step"
