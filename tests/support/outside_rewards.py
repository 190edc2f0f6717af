"""Rewards as a user would write them, and questions for them."""

from __future__ import annotations

import json
from pathlib import Path

from efficientbench.data_tools.chat.task import Example


def ascii_share(example: Example, completion: str) -> float:
    """How much of an answer is ASCII, of which even a model that has learned nothing writes now more, now less."""
    return sum(map(str.isascii, completion)) / len(completion) if completion else 0.0


def all_the_same(example: Example, completion: str) -> float:
    """Nothing to learn from."""
    return 0.1


def write_questions(path: Path, count: int) -> Path:
    """Rows of GSM8K with short questions, of which each is its number."""
    rows = [{"question": f"{number}?", "answer": f"It is {number}.\n#### {number}"} for number in range(count)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path
