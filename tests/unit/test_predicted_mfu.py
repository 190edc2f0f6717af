"""The prediction of MFU (tests/benchmarks/predicted_mfu.py) holds its bounds, and the page has its figures."""

from __future__ import annotations

import json

from benchmarks.predicted_mfu import AUDITED, STATES, WANTED, predicted_mfu
from support.repository import ROOT


def test_the_page_has_the_prediction_of_this_code() -> None:
    found = {name: predicted_mfu(state) for name, state in STATES.items()}
    assert AUDITED[0] <= found["before, micro-batch 2"] <= AUDITED[1]
    assert found["micro-batch 8"] >= WANTED
    rows = json.loads((ROOT / "docs" / "measured" / "predicted_mfu.json").read_text(encoding="utf-8"))["rows"]
    written = {row["state of the code"]: row["predicted MFU"] for row in rows}
    assert written == {name: f"{100 * value:.1f} %" for name, value in found.items()}
