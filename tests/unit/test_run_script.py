"""tests/run.sh with a stand-in for Python: what it asks pytest for, and that a failure anywhere is its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.repository import ROOT

SCRIPT = ROOT / "tests" / "run.sh"
BESIDE, ALONE = "not alone", "and alone"
STAND_IN = """#!/bin/bash
echo "$*" >>"$ASKED"
[[ "$*" != *"$FAILING"* ]]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the script, an environment that is set up, and a Python that only notes what it is asked."""
    for folder in ("tests", "launchers", "bin"):
        (tmp_path / folder).mkdir()
    shutil.copy(SCRIPT, tmp_path / "tests")
    (tmp_path / "launchers" / "bootstrap.sh").write_text("bootstrap() { :; }\n")
    (tmp_path / "bin" / "python3").write_text(STAND_IN)
    (tmp_path / "bin" / "python3").chmod(0o755)
    return tmp_path


def run(checkout: Path, *words: str, failing: str = "nothing") -> tuple[int, list[str]]:
    """The exit status, and the arguments of every Python."""
    asked = checkout / "asked"
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "ASKED": str(asked), "FAILING": failing}
    done = subprocess.run(["bash", str(checkout / "tests" / "run.sh"), *words], env=variables, check=False, timeout=60)
    return done.returncode, asked.read_text().splitlines()


@pytest.mark.parametrize(("words", "wanted"), [((), "not proof"), (("--all",), "proof or not proof")])
def test_every_folder_is_run_once_and_then_what_measures_the_machine(
    checkout: Path, words: tuple[str, ...], wanted: str
) -> None:
    status, asked = run(checkout, *words)
    assert status == 0
    *halves, last = asked
    assert all(f"-m ({wanted}) and {BESIDE} tests/" in half for half in halves)
    whole, rest = sorted(half.partition(f"and {BESIDE} ")[2] for half in halves)
    moved = "tests/end_to_end/test_survival.py"
    assert whole == f"tests/end_to_end --ignore {moved}"
    assert rest == f"tests/unit tests/numerics tests/distributed {moved}"
    assert last.endswith(f"-m ({wanted}) {ALONE} tests")


@pytest.mark.parametrize("failing", ["tests/unit", "tests/end_to_end", ALONE])
def test_a_failure_anywhere_is_its_own(checkout: Path, failing: str) -> None:
    status, asked = run(checkout, failing=failing)
    assert (status, len(asked)) == (1, 3)


def test_arguments_go_to_one_pytest(checkout: Path) -> None:
    assert run(checkout, "--all", "-k", "name") == (0, ["-m pytest -m proof or not proof -k name"])
