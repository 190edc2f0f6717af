"""A pipeline on data of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.core_bundle import write_bundle

from efficientbench.speedrun.request import Request


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    """A short pipeline, all of whose data lies here."""
    (tmp_path / "text.txt").write_text("A text.\n")
    for name in ("mid", "sft"):
        (tmp_path / f"{name}.yaml").write_text(f"tasks: [{{task: messages, path: {name}.jsonl}}]\n")
    for task in ("gsm8k", "mmlu"):
        (tmp_path / "items" / task).mkdir(parents=True)
    for part in ("train", "test"):
        (tmp_path / "items" / "gsm8k" / f"{part}.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    choices = '{"question": "1 + 1?", "choices": ["1", "2", "3", "4"], "answer": 1}\n'
    (tmp_path / "items" / "mmlu" / "test.jsonl").write_text(choices)
    write_bundle(tmp_path / "items" / "core", ("copa",))
    mixtures = {name: tmp_path / f"{name}.yaml" for name in ("mid", "sft")}
    folders = {"work": tmp_path / "pipeline", "text": tmp_path / "text.txt", "task_data": tmp_path / "items"}
    return Request(device="cpu", short=True, mixtures=mixtures, **folders)
