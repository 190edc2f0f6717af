"""Entropy of single tokens, against scipy's, of whole corpora and of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.cells import write_tokens

from efficientbench.data_tools.tokens import indexed_documents
from efficientbench.data_tools.tokens.indexed_documents import unigram_entropy


def test_entropy_of_a_blend_weights_its_shares(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    texts = [random.zipf(1.3, 20_000) % 500, random.integers(0, 60, 5_000)]
    for number, text in enumerate(texts):
        write_tokens(tmp_path / str(number), np.array_split(text, 7))
    shares = [np.bincount(text, minlength=500) / len(text) for text in texts]
    found = unigram_entropy([(0.7, tmp_path / "0"), (0.3, tmp_path / "1")])
    assert found == pytest.approx(stats.entropy(0.7 * shares[0] + 0.3 * shares[1]), rel=1e-12)


def test_a_sample_covers_the_complete_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Sorted text: its beginning alone would have an entropy of 0.
    text = np.sort(np.random.default_rng(0).integers(0, 64, 200_000))
    write_tokens(tmp_path / "sorted", [text])
    monkeypatch.setattr(indexed_documents, "_BLOCK", 100)
    assert unigram_entropy([(1.0, tmp_path / "sorted")]) == pytest.approx(np.log(64), rel=0.02)
