"""The script that measures a GPU's speed, rehearsed on the CPU with toy models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import ROOT, TIME_LIMIT_S, environment

pytestmark = pytest.mark.proof

SCRIPT = ROOT / "tests" / "benchmarks" / "gpu_speed.py"
MEASURED = {"risks": 6, "lengths": 2, "generation": 4}
"""Part → how many figures it has; the others measure the same way, and compile transformers for minutes."""


def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, words)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
    )


def test_a_rehearsal_measures_every_figure_of_its_parts(tmp_path: Path) -> None:
    output = tmp_path / "speed.json"
    done = call("--rehearse", "--parts", *MEASURED, "--output", output)
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    assert {part: len(found[part]) for part in MEASURED} == MEASURED
    for part in MEASURED:
        for each in found[part]:
            assert each["reason"] is None, each
            assert each["decode_tokens_per_s" if part == "generation" else "tokens_per_s"] > 0
    # What a machine without this repository's history has measured is read here.
    again = call("--read", output)
    assert again.returncode == 0, again.stderr
    for line in (line for line in done.stdout.splitlines() if ": throughput: " in line or ": new tokens: " in line):
        assert line in again.stdout
    found["about"]["torch"] = "another"
    (tmp_path / "other.json").write_text(json.dumps(found))
    assert "measured on different devices" in call("--read", output, tmp_path / "other.json").stderr


def test_a_rehearsal_writes_nothing_for_the_docs() -> None:
    done = call("--rehearse", "--write")
    assert done.returncode == 2
    assert "a rehearsal measures nothing for the docs" in done.stderr
