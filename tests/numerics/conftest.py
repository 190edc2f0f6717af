"""Tokenizers that the tests of exported and imported models share."""

from __future__ import annotations

import pytest
from support.chat_tokenizers import behind_qwen2s_split

from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer, train_tokenizer

# Of its own, so that what the tokenizer makes of a word changes with no file.
TEXT = (
    "from efficientbench.data_tools import tokens\nimport json, os\n\nThe same vocabulary serves all tests: words, "
    "signs (as $5.20 or 3%), names_of_code, and the ends of lines.\nIt is trained on this text whatever changes in the "
    "files beside it; for each of its words there are tokens, as training makes them.\nreturn {path: own(folder / "
    "path) for path in sorted(folder) if path.is_file()}\n"
)


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextTokenizer]:
    """`own`: as training makes it; `qwen2`: the same vocabulary behind Qwen2's normalization and split."""
    folder = tmp_path_factory.mktemp("tokenizers")
    train_tokenizer([TEXT, "1999 1234567 8 1234575 " * 9], 300, folder / "own")
    own = load_tokenizer(folder / "own")
    own.save(folder / "qwen2")
    behind_qwen2s_split(folder / "qwen2")
    return {"own": own, "qwen2": load_tokenizer(folder / "qwen2")}
