"""A small pair of conversations with a mask, whose tokens are bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.chat_tokenizers import of_bytes

VOCABULARY = 266
"""Tokens of the pair's tokenizer."""


def row(number: int) -> dict[str, Any]:
    """Of 13 to 66 tokens, of which 3 to 23 are learned."""
    turns = 1 + number % 2
    return {
        "messages": [
            message
            for turn in range(turns)
            for message in (
                {"role": "user", "content": f"{number}{'?' * (1 + number % 11)}"},
                {"role": "assistant", "content": f"{turn}{'!' * (1 + number * 7 % 13)}"},
            )
        ]
    }


def write_conversations(folder: Path, count: int) -> Path:
    """The prefix of a pair of so many conversations."""
    return write_rows(folder, [row(number)["messages"] for number in range(count)])


def write_rows(folder: Path, conversations: list[list[dict[str, Any]]]) -> Path:
    """The prefix of a pair of these lists of messages."""
    from efficientbench.data_tools.chat.build import build_conversations

    folder.mkdir(parents=True, exist_ok=True)
    of_bytes(folder / "bpe")
    lines = [json.dumps({"messages": messages}) + "\n" for messages in conversations]
    (folder / "rows.jsonl").write_text("".join(lines))
    (folder / "mixture.yaml").write_text("tasks: [{task: messages, path: rows.jsonl}]")
    return build_conversations(folder / "mixture.yaml", folder / "chat", folder / "bpe").prefix
