"""How far an evaluation is, in a file and on a terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from efficientbench.evaluation import evaluate
from efficientbench.evaluation.evaluate import EvaluationProgress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, s, as its only entry."""
    now_s = [1000.0]
    monkeypatch.setattr(evaluate, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    return now_s


def test_a_file_gets_occasional_lines_with_the_remaining_time(clock: list[float]) -> None:
    shown = io.StringIO()
    with EvaluationProgress("made", 1200, 100.0, Console(file=shown, soft_wrap=True)) as bar:
        for after_s, items, cost in ((10.0, 20, 2.0), (40.0, 400, 8.0), (60.0, 30, 10.0), (75.0, 50, 5.0)):
            clock[0] = 1000.0 + after_s
            bar.add(items, cost)
    # 40 s for a tenth of the cost, 75 s for a quarter; 10 s and 60 s come too soon behind what was told before.
    assert shown.getvalue().splitlines() == [
        "made: 420 of 1,200 items, 0:06:00 left",
        "made: 500 of 1,200 items, 0:03:45 left",
    ]


def test_a_terminal_gets_a_bar(clock: list[float]) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    with EvaluationProgress("made", 8, 4.0, terminal) as bar:
        clock[0] += 90.0
        bar.add(2, 1.0)
    assert "2 of 8 items, 0:04:30 left" in shown.getvalue()
