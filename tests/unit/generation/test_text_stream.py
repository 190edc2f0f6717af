"""Text of tokens that come one by one: whole characters alone, and together all that the tokens say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer, train_tokenizer
from efficientbench.generation.text_stream import REPLACEMENT, TextStream

TEXT = "Größe 漢字, \U0001f600 and \U0001f469\u200d\U0001f680: it's 1999\n\n  é e\u0301 Ω."


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """Of few merges: characters beyond ASCII are several tokens."""
    folder = tmp_path_factory.mktemp("tokenizer") / "own"
    train_tokenizer([Path(__file__).read_text(encoding="ascii", errors="ignore")], 280, folder)
    return load_tokenizer(folder)


def pieces_of(tokenizer: TextTokenizer, prompt: list[int], tokens: list[int]) -> list[str]:
    stream = TextStream(tokenizer.decode, prompt)
    return [*(stream.add(token) for token in tokens), stream.rest()]


@pytest.mark.parametrize("prompt", ["", "A prompt, ", "漢"])
def test_no_piece_of_text_ends_within_a_character(tokenizer: TextTokenizer, prompt: str) -> None:
    before, tokens = tokenizer.encode_batch([prompt, TEXT])
    assert len(tokens) > len(TEXT)
    pieces = pieces_of(tokenizer, before, tokens)
    assert "".join(pieces) == TEXT
    assert not any(REPLACEMENT in piece for piece in pieces)


def test_invalid_bytes_are_returned_at_the_end(tokenizer: TextTokenizer) -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        tokens = random.integers(0, tokenizer.vocab_size, 40).tolist()
        assert "".join(pieces_of(tokenizer, [], tokens)) == tokenizer.decode(tokens)


def test_a_special_token_has_no_text(tokenizer: TextTokenizer) -> None:
    [tokens] = tokenizer.encode_batch(["ab"])
    assert "".join(pieces_of(tokenizer, [], [*tokens, tokenizer.eod_id])) == "ab"
