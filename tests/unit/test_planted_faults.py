"""The faults that tests/benchmarks/planted_faults.py plants fit the code as it stands."""

from __future__ import annotations

from benchmarks.planted_faults import FAULTS, misfits
from support.repository import ROOT


def test_every_fault_has_its_place() -> None:
    assert misfits(FAULTS, ROOT) == []
