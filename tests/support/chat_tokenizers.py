"""Tokenizers with chat tokens: one whose ids can be counted by hand, and one with merges."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer, train_tokenizer
from efficientbench.export.hugging_face import QWEN2_SPLIT

BOS, USER, USER_END, ASSISTANT, ASSISTANT_END, PYTHON, PYTHON_END, OUTPUT, OUTPUT_END = range(1, 10)
"""The ids of the nine chat tokens in a tokenizer that we train: 0 ends a document."""


def byte_ids(text: str, first: int = 10) -> list[int]:
    """The ids of a text in a tokenizer without merges, whose bytes begin at `first`.

    Vocabularies list bytes by the character that stands for each (GPT-2's): the visible ones of Latin-1, then a
    character from U+0100 on for each of the others, in the order of their bytes.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    order = [*visible, *(byte for byte in range(256) if byte not in visible)]
    return [first + order.index(byte) for byte in text.encode()]


def of_bytes(folder: Path) -> TextTokenizer:
    """Without any merge: each byte is a token."""
    train_tokenizer([""], 266, folder, chat=True)
    return load_tokenizer(folder)


def of_words(folder: Path, texts: list[str]) -> TextTokenizer:
    """With merges, so that text which is cut otherwise has other ids."""
    train_tokenizer(texts, 500, folder, chat=True)
    return load_tokenizer(folder)


def behind_qwen2s_split(folder: Path) -> None:
    """Give a saved tokenizer the normalization and the split that transformers has for Qwen2."""
    path = folder / "tokenizer.json"
    spec = json.loads(path.read_text())
    spec["normalizer"] = {"type": "NFC"}
    spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = QWEN2_SPLIT
    path.write_text(json.dumps(spec))


def of_qwen(folder: Path, texts: list[str]) -> TextTokenizer:
    """With the two tokens of Qwen's style after 400 others."""
    train_tokenizer(texts, 400, folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.save(str(folder / "tokenizer.json"))
    loaded = load_tokenizer(folder)
    loaded.save(folder)
    return loaded


def unmarked(folder: Path) -> Path:
    """The chat tokens are there, and not marked as special."""
    spec = json.loads((folder / "tokenizer.json").read_text())
    for added in spec["added_tokens"][1:]:
        added["special"] = False
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    return folder
