"""SFT of other models than GQA, killed and gone on with: each step that was computed twice has the same numbers."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from support.command_line import TINY, efficientbench, interrupted, record, steps
from support.conversation_pairs import VOCABULARY, write_conversations

STEPS, SAVED, KILLED = 120, 60, 68
"""Of the run; the step whose checkpoint there is; the first step after which the run is killed."""
SFT = (
    "training.objective=sft",
    f"model.vocab_size={VOCABULARY}",
    f"training.steps={STEPS}",
    f"checkpoint.interval={SAVED}",
    "data.split=[9,1,0]",
)
# A query reads three of four blocks.
NSA = tuple(
    f"model.attention.{each}"
    for each in (
        "kind=nsa",
        "query_groups=2",
        "compress_block=8",
        "compress_stride=4",
        "select_block=8",
        "select_count=3",
        "window=16",
    )
)
MEASURED = ("measured", "step_time_s", "elapsed_s", "memory_used_bytes", "power_w")
"""What no two runs have in common."""


def trained(folder: Path) -> dict[int, dict[str, Any]]:
    """Each step of the log with what it computed: loss, gradient norm, rate, tokens, and what routers did."""
    return {
        line["step"]: {key: value for key, value in line.items() if key not in MEASURED}
        for line in steps(folder)
        if line["kind"] == "step"
    }


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        pytest.param("moe_1.5Bx8", (*NSA, "model.position.kind=absolute"), id="nsa-moe-absolute"),
        pytest.param("mla_1.5B", (), id="mla"),
    ],
)
def test_a_killed_sft_run_resumes_bit_for_bit(
    name: str, overrides: tuple[str, ...], tmp_path: Path, cache: str
) -> None:
    pair = write_conversations(tmp_path / "pair", 300)
    folder = tmp_path / f"{name}_smoke"
    places = (f"output={tmp_path}", f"data.cache={cache}", f"data.path={pair}")
    words = ("run", name, "--smoke", *places, *TINY, *SFT, *overrides)
    assert interrupted(folder, words, signal.SIGKILL, KILLED) == 1
    before = trained(folder)
    done = efficientbench(*words, expect=0)
    assert f"resumes after step {SAVED}" in done.stdout
    after = trained(folder)
    assert list(after) == list(range(1, STEPS + 1))
    twice = [step for step in before if step > SAVED]
    assert len(twice) >= KILLED - SAVED
    assert [after[step] for step in twice] == [before[step] for step in twice]
    # No step is the copy of another one.
    assert len({after[step]["loss"] for step in twice}) == len(twice)
    assert all("tokens_per_expert" in after[step] for step in twice) == name.startswith("moe")
    assert record(folder)["resumed_after_steps"] == [SAVED]
