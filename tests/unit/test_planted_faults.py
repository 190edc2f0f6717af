"""The faults that tests/benchmarks/planted_faults.py plants fit the code and the tests as they stand."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from benchmarks.planted_faults import FAULTS, misfits
from support.repository import ROOT


def test_every_fault_has_its_place() -> None:
    assert misfits(FAULTS, ROOT) == []


@pytest.mark.proof
def test_every_fault_selects_a_test() -> None:
    paths = {f"tests/{path}" for fault in FAULTS for path in fault.tests.split()}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "proof or not proof", *sorted(paths)]
    # Options of the caller would print another list.
    plain = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, check=True)
    collected = [line.partition("::") for line in done.stdout.splitlines() if "::" in line]
    for fault in FAULTS:
        files = tuple(f"tests/{path}" for path in fault.tests.split())
        names = [name.lower() for file, _, name in collected if file.startswith(files)]
        parts = [part.strip("()").lower().split(" and ") for part in fault.selection.split(" or ")]
        assert any(all(word in name for word in part) for name in names for part in parts), fault.name
