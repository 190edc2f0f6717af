"""`efficientbench profile`, as a user starts it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.command_line import TINY, efficientbench

from efficientbench.metrics.report.sections.rank_table import load_step_shares
from efficientbench.profiling.trace import break_down, read_trace

KINDS = ("matmuls", "attention", "norms", "loss", "optimizer", "other", "communication", "idle")


def profiled(tmp_path: Path, cache: str, *overrides: str) -> tuple[str, Path]:
    folders = (f"output={tmp_path / 'suite'}", f"data.cache={cache}")
    done = efficientbench("profile", "gqa_0.5B", "--smoke", *folders, *TINY, *overrides, expect=0)
    return done.stdout, tmp_path / "suite" / "gqa_0.5B_smoke" / "profile"


@pytest.mark.proof
@pytest.mark.parametrize("layout", [(), ("parallel.tp=2",)])
def test_the_shares_of_the_profile_add_up(layout: tuple[str, ...], tmp_path: Path, cache: str) -> None:
    out, folder = profiled(tmp_path, cache, "measurement.profile_steps=2", *layout)
    shares = {kind: float(re.search(rf"^{kind} +[\d.,]+ +([\d.]+)%", out, re.MULTILINE)[1]) for kind in KINDS}
    assert sum(shares.values()) == pytest.approx(100, abs=0.5)
    for kind in KINDS:
        assert shares[kind] > 0 or (kind == "communication" and not layout), kind
    assert re.search(r"largest gap: \w+, [\d.,]+ ms a step", out)
    assert "mean of 2 traced; time of the training thread's operations" in out
    assert break_down(read_trace(folder / "trace.json.gz")).steps == 2
    [kept] = load_step_shares(folder.parent)[0]
    assert kept.shares.seconds == pytest.approx(break_down(read_trace(folder / "trace.json.gz")).seconds, abs=1e-9)
    # A run like any other: it has a record, prints the command that reports it, and leaves nothing half written.
    assert re.search(r"efficientbench report \S+/profile\n", out)
    assert (folder / "record.json").exists()
    assert not list(folder.glob("partial_*"))
