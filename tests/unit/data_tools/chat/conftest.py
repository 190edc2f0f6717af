"""What the tests of conversations share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.chat_tokenizers import of_words


def conversation(number: int) -> dict[str, Any]:
    """A row of one to three turns, each with text of its own."""
    messages = []
    for turn in range(1 + number % 3):
        messages.append({"role": "user", "content": f"Question {number}.{turn}, with café: {'why ' * (number % 7)}?"})
        messages.append({"role": "assistant", "content": f"Answer {number}.{turn}: {'so ' * (number % 11)}."})
    return {"messages": messages, "source": "made up"}


def write_rows(path: Path, rows: list[Any]) -> Path:
    """JSONL of these rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def chat_bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with chat tokens and merges."""
    folder = tmp_path_factory.mktemp("chat") / "bpe"
    of_words(folder, [json.dumps(conversation(number)) for number in range(50)])
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """40 conversations in `rows.jsonl`."""
    return write_rows(tmp_path / "rows.jsonl", [conversation(number) for number in range(40)])
