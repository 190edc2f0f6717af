"""The script that measures a GPU's speed, rehearsed on the CPU with toy models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import ROOT, environment

pytestmark = pytest.mark.proof

SCRIPT = ROOT / "tests" / "benchmarks" / "gpu_speed.py"
MEASURED = {"headline": 5, "risks": 8, "lengths": 2, "generation": 4, "transformers": 3, "matrix": 2}
"""Part → how many figures it has."""
LIMIT_S = 1740
"""A rehearsal takes 70 s of one core, which others may use too."""


def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, words)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


@pytest.mark.timeout(LIMIT_S + 60)
def test_a_rehearsal_measures_every_figure_of_its_parts(tmp_path: Path) -> None:
    output = tmp_path / "speed.json"
    done = call("--rehearse", "--parts", *MEASURED, "--limit-s", "inf", "--output", output)
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    figures = MEASURED | {"again": 1}
    assert {part: len(found[part]) for part in figures} == figures
    for part in figures:
        for each in found[part]:
            assert each["reason"] is None, each
            assert each["decode_tokens_per_s" if part == "generation" else "tokens_per_s"] > 0
    for line in (
        "gqa_1.5B, micro-batch 4: tokens/s, ours over the fastest of transformers",
        "gqa_1.5B once more, over",
    ):
        assert line in done.stdout
    assert "aten::mm" in output.with_suffix(".kernels.txt").read_text()
    # What a machine without this repository's history has measured is read here.
    again = call("--read", output)
    assert again.returncode == 0, again.stderr
    for line in (line for line in done.stdout.splitlines() if ": throughput: " in line or ": new tokens: " in line):
        assert line in again.stdout
    found["about"]["torch"] = "another"
    (tmp_path / "other.json").write_text(json.dumps(found))
    assert "measured on different devices" in call("--read", output, tmp_path / "other.json").stderr


def test_a_rehearsal_does_not_change_the_docs() -> None:
    done = call("--rehearse", "--write")
    assert done.returncode == 2
    assert "a rehearsal measures nothing for the docs" in done.stderr
