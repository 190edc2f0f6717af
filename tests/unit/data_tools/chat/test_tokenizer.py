"""Tokenizers with chat tokens: what `train-tokenizer --chat` saves, and what of it stays in copies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.chat_tokenizers import of_qwen
from support.data_tools_command import run

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.chat.styles import CHAT_TOKENS, find_style
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer, train_tokenizer

TEXTS = [f"Document {number} of some words, <|bos|> among them. " * 9 for number in range(60)]


def test_the_chat_tokens_are_reserved_within_the_size(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    source = tmp_path / "text.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    code, out, error = run("train-tokenizer", source, "--chat", "--vocab-size", "320", "--output", tmp_path / "bpe")
    assert (code, error) == (0, "")
    assert "320 tokens" in out
    loaded = AutoTokenizer.from_pretrained(str(tmp_path / "bpe"))
    assert len(loaded) == 320
    assert [loaded.encode(token) for token in CHAT_TOKENS] == [[number] for number in range(1, 10)]
    assert set(CHAT_TOKENS) <= set(loaded.all_special_tokens) | set(loaded.added_tokens_encoder)
    assert loaded.eos_token == "<|endoftext|>"
    assert "{%- generation -%}" in loaded.chat_template
    lengths = np.load(tmp_path / "bpe" / "token_bytes.npy")
    assert lengths[:10].tolist() == [0] * 10
    assert lengths[10:].min() > 0
    # As text, a name is no token.
    own = load_tokenizer(tmp_path / "bpe")
    (ids,) = own.encode_batch(["<|bos|>"])
    assert len(ids) > 1
    assert own.special_tokens() == {"<|endoftext|>": 0, **{name: number for number, name in enumerate(CHAT_TOKENS, 1)}}


def test_a_vocabulary_without_room_for_chat_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"at least 266 tokens \(256 bytes and the end of a document, and 9 chat tok"):
        train_tokenizer(TEXTS, 265, tmp_path / "bpe", chat=True)


def test_a_tokenizer_without_chat_tokens_has_no_template(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, 300, tmp_path / "plain")
    assert "chat_template" not in json.loads((tmp_path / "plain" / "tokenizer_config.json").read_text())
    assert find_style(load_tokenizer(tmp_path / "plain").special_tokens()) is None


def test_copies_keep_the_template_and_the_ids(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, 320, tmp_path / "own", chat=True)
    of_qwen(tmp_path / "qwen", TEXTS)
    for name, style in (("own", "nanochat"), ("qwen", "qwen")):
        tokenizer = load_tokenizer(tmp_path / name)
        tokenizer.save(tmp_path / "copy")
        copy = load_tokenizer(tmp_path / "copy")
        assert copy.fingerprint == tokenizer.fingerprint
        found = find_style(copy.special_tokens())
        assert found is not None
        assert found.name == style
        config = json.loads((tmp_path / "copy" / "tokenizer_config.json").read_text())
        assert config["chat_template"] == found.template
