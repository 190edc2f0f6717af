"""Items in the training text, against a search through all windows of Python's own lists."""

from __future__ import annotations

import numpy as np
import pytest

from efficientbench.evaluation import contamination
from efficientbench.evaluation.contamination import TOKENS, find_contaminated

Texts = dict[str, list[int]]


def plainly(texts: Texts, documents: list[np.ndarray]) -> set[str]:
    there = {
        tuple(document[at : at + TOKENS].tolist()) for document in documents for at in range(len(document) - TOKENS + 1)
    }
    return {
        name
        for name, tokens in texts.items()
        if any(tuple(tokens[at : at + TOKENS]) in there for at in range(len(tokens) - TOKENS + 1))
    }


@pytest.mark.parametrize("block", [1, 100, 1 << 20])
def test_items_that_share_thirteen_tokens_with_a_document_are_found(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contamination, "BLOCK", block)
    random = np.random.default_rng(0)
    # Of few tokens, so that shorter pieces occur everywhere.
    documents = [random.integers(0, 4, int(length)).astype(np.uint16) for length in random.integers(1, 400, 40)]
    texts: Texts = {str(number): random.integers(0, 4, 30).tolist() for number in range(30)}
    for number in range(10):
        piece = documents[number + 5].tolist()[:TOKENS]
        texts[f"copied/{number}"] = [*random.integers(0, 4, 5).tolist(), *piece]
    found = find_contaminated(texts, documents)
    assert found == plainly(texts, documents)
    assert {f"copied/{number}" for number in range(10) if len(documents[number + 5]) >= TOKENS} <= found
    assert len(found) < len(texts)


def test_matches_across_two_documents_do_not_count() -> None:
    text = list(range(TOKENS))
    assert find_contaminated({"a": text}, [np.array(text[:6]), np.array(text[6:])]) == set()
    assert find_contaminated({"a": text, "b": text[1:]}, [np.array([9, *text])]) == {"a"}
    assert find_contaminated({}, [np.array(text)]) == set()
