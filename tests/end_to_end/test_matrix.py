"""Scripts of the matrix with --smoke: a dense model and one of experts learn, and have their rows in one report."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

import pytest
from replicas.places import job_environment
from support.command_line import ROOT, efficientbench, losses

pytestmark = pytest.mark.proof

RUNS = ("moe_0.5Bx8", "mqa_0.5B")
"""Other models learn in distributed/test_smoke_runs.py, and go through the command line in tests of their own."""
FEW_STEPS = "training.steps=40"
RUN_TIME_LIMIT_S = 540


def test_smoke_scripts_lower_their_losses_and_have_rows_in_one_report(tmp_path: Path, cache: str) -> None:
    for name in RUNS:
        script = max((ROOT / "experiments").glob(f"*/run_{name}.sh"))  # that of its own suite, beside hybrids
        done = subprocess.run(
            ["bash", str(script), "--smoke", f"output={tmp_path}", f"data.cache={cache}", FEW_STEPS],
            env=job_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIME_LIMIT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = losses(tmp_path / f"{name}_smoke")
        assert found[-1] < found[0] - 1
    efficientbench("report", str(tmp_path), expect=0)
    rows = csv.DictReader((tmp_path / "report.csv").read_text(encoding="utf-8").splitlines())
    assert [(row["run"], row["status"]) for row in rows] == [(name, "completed") for name in RUNS]
