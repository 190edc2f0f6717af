"""Small questions of the chat tasks, in the form of their rows on the hub."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CHOICES = {"text": ["ice", "fire"], "label": ["A", "B"]}
ROWS: dict[str, dict[str, Any]] = {
    "arc": {"question": "Hot?", "choices": CHOICES, "answerKey": "B"},
    "mmlu": {"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 2},
    "gsm8k": {"question": "How many?", "answer": "It is <<2*3=6>>6.\n#### 6"},
    "humaneval": {
        "prompt": "def up(x):\n",
        "canonical_solution": "    return x + 1\n",
        "test": "def check(candidate):\n    assert candidate(1) == 2\n",
        "entry_point": "up",
    },
}


def write_chat_tasks(folder: Path, names: Iterable[str], count: int) -> Path:
    """A folder for --data with so many questions of each task, each longer than the one before."""
    folder.mkdir()
    for name in names:
        asked = "prompt" if name == "humaneval" else "question"
        rows = [{**ROWS[name], asked: ROWS[name][asked] + "?" * number} for number in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder
