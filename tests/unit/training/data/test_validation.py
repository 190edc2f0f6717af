"""The validation text as sequences: every length scores the same targets, each once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.cells import write_tokens

from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.training.data.validation import ValidationText, choose_documents

LENGTHS = (2, 3, 17, 33, 40, 129)


def documents() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(1, 131, length).astype(np.uint16) for length in LENGTHS]


@pytest.mark.parametrize("seq_len", [1, 5, 16, 64, 500])
def test_every_sequence_length_scores_each_target_once(seq_len: int) -> None:
    text = ValidationText(documents(), seq_len)
    scored = [text[number]["labels"][text[number]["loss_mask"] == 1] for number in range(len(text))]
    expected = np.concatenate([document[1:] for document in documents()])
    assert torch.cat(scored).tolist() == expected.tolist()
    assert text.fingerprint == ValidationText(documents(), 7).fingerprint
    assert text.fingerprint != ValidationText(documents()[:-1], seq_len).fingerprint
    for number in range(len(text)):
        tokens, labels = text[number]["tokens"], text[number]["labels"]
        count = int(text[number]["loss_mask"].sum())
        assert torch.equal(tokens[1:count], labels[: count - 1])


def test_documents_begin_sequences_and_rows_beyond_the_text_have_no_target() -> None:
    text = ValidationText(documents(), 16)
    first = [row for row in range(len(text)) if text.rows[row].first == 0]
    assert [text[row]["tokens"][0].item() for row in first] == [document[0] for document in documents()]
    assert text[len(text)]["loss_mask"].sum() == 0


def test_sums_of_rows_become_sums_of_documents() -> None:
    text = ValidationText(documents(), 16)
    counts = np.array([[row.targets] for row in text.rows] + [[99.0]])
    assert text.by_document(counts)[:, 0].tolist() == [length - 1 for length in LENGTHS]


def test_each_source_gets_its_share_without_an_extra_document(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for source in range(2):
        write_tokens(tmp_path / str(source), [random.integers(1, 131, length) for length in [3000, *[40] * 60]])
    opened = [IndexedDocuments(tmp_path / str(source)) for source in range(2)]
    numbers = np.arange(61)
    chosen = choose_documents([(0.75, opened[0], numbers), (0.25, opened[1], numbers)], 1600)
    assert sum(len(document) - 1 for document in chosen) == 1600
    assert len(chosen[0]) - 1 == 1600 // 16
    assert sum(len(document) - 1 for document in chosen[:30]) <= 1200
    # What there is, where it is less.
    few = choose_documents([(1.0, opened[0], numbers[:3])], 1600)
    assert [len(document) - 1 for document in few] == [100, 39, 39]
