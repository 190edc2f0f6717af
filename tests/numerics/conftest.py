"""Tokenizers that the tests of exported and imported models share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer, train_tokenizer
from efficientbench.export.hugging_face import QWEN2_SPLIT


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextTokenizer]:
    """`own`: as training makes it; `qwen2`: the same vocabulary behind Qwen2's normalization and split."""
    folder = tmp_path_factory.mktemp("tokenizers")
    train_tokenizer([Path(__file__).read_text(), "1999 1234567 8 1234575 " * 9], 300, folder / "own")
    own = load_tokenizer(folder / "own")
    own.save(folder / "qwen2")
    path = folder / "qwen2" / "tokenizer.json"
    spec = json.loads(path.read_text())
    spec["normalizer"] = {"type": "NFC"}
    spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = QWEN2_SPLIT
    path.write_text(json.dumps(spec))
    return {"own": own, "qwen2": load_tokenizer(folder / "qwen2")}
