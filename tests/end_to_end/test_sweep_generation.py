"""A sweep that measures generation with what it has trained, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import TINY, efficientbench

pytestmark = pytest.mark.proof


def test_generation_of_a_trained_run_is_measured_without_retraining(tmp_path: Path, cache: str) -> None:
    words = ("sweep", "--only", "gqa_1.5B", "--smoke", f"output={tmp_path}", f"data.cache={cache}", *TINY)
    efficientbench(*words)
    folder = tmp_path / "gqa_1.5B_smoke"
    trained = (folder / "record.json").read_bytes()
    planned = efficientbench(*words, "--generate", "--dry-run")
    assert "  trained  " in planned.stdout
    assert "time and energy are not estimated" in planned.stdout

    done = efficientbench(*words, "--generate")
    assert (folder / "record.json").read_bytes() == trained
    made = json.loads((folder / "generation.json").read_text(encoding="utf-8"))
    assert (made["status"], made["weights"].split()[0]) == ("completed", "step")
    assert any(row["failure"] is None for row in made["rows"])
    [state] = (tmp_path / "sweep" / "queue").glob("*.json")
    found = json.loads(state.read_text(encoding="utf-8"))
    assert (found["state"], found["command"][1:3]) == ("done", ["generate", str(folder)])
    assert "decode tokens/s" in done.stdout
    assert (tmp_path / "generation.csv").is_file()

    again = efficientbench(*words, "--generate")
    assert "complete, kept" in again.stdout


def test_one_call_trains_and_generates(tmp_path: Path, cache: str) -> None:
    words = ("sweep", "--only", "gqa_1.5B", "--smoke", f"output={tmp_path}", f"data.cache={cache}", *TINY)
    done = efficientbench(*words, "--generate", "--weights", "int8")
    assert "trained; generation is measured" in done.stdout
    folder = tmp_path / "gqa_1.5B_smoke"
    for width, place in (("none", folder), ("int8", folder / "quantized" / "int8")):
        made = json.loads((place / "generation.json").read_text(encoding="utf-8"))
        assert (made["status"], made["quantization"], made["weights"].split()[0]) == ("completed", width, "step")
    assert "## Fewer bits" in (tmp_path / "report.md").read_text(encoding="utf-8")
    compared = efficientbench("compare", *[str(folder)] * 2, "--served-tokens", "1e9")
    assert "both cost the same" in compared.stdout
