"""A study by the command line: its plan, its runs over a kill, and what it then has."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from support.command_line import TIME_LIMIT_S, children, efficientbench, record, started, until
from support.study_schema import check_study
from support.tiny_studies import write_study

RATIOS = (4, 8, 16)
SHORT = ("training.global_batch_size=32", "training.micro_batch_size=32", "measurement.min_steps=4")


def states(suite: Path) -> dict[str, dict[str, Any]]:
    files = sorted((suite / "sweep" / "queue").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def test_the_plan_of_a_study_says_what_it_takes_and_can_tell_and_writes_nothing(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    file = write_study(tmp_path / "mine.yaml", seeds=3, tokens_per_parameter=[10, 20, 40])
    done = efficientbench("study", str(file), "--dry-run", "--price-per-hour", "2", f"output={suite}", expect=0)
    # 54 runs of the cells, and three rates at two sizes for two variants.
    first = done.stdout.splitlines()[0]
    assert re.fullmatch(r"whole budget of 66 runs: .* device hours, .*, [\d.]+ at 2 for a device and hour", first)
    for shown in (
        "gqa, mla at 64k",
        "0 of 54 runs of the cells are trained; a search tries 3 to 6 rates",
        "n/a energy: no record in this folder has the energy of a run",
        "disk: checkpoints take up to ",
        "precision: a difference at the target has a standard deviation of 0.00",
        "mla_64k: feed-forward width 136 instead of 128: +0.52 % left",
    ):
        assert shown in done.stdout
    assert not suite.exists()


@pytest.mark.proof
def test_a_killed_study_goes_on_where_it_was_and_ends_with_every_run(tmp_path: Path, cache: str) -> None:
    suite = tmp_path / "suite"
    # So small models learn best at rates that would be far too high for others.
    file = write_study(tmp_path / "mine.yaml", tokens_per_parameter=list(RATIOS), learning_rate={"start": 0.03})
    words = ("study", str(file), f"output={suite}", f"data.cache={cache}", "device=cpu", *SHORT)
    with started(*words) as first:
        until(lambda: any(each["state"] == "done" for each in states(suite).values()), "the first run", TIME_LIMIT_S)
        family = children(first.pid)
        os.kill(first.pid, signal.SIGKILL)
        first.communicate(timeout=TIME_LIMIT_S)
    until(lambda: not any(process.is_running() for process in family), "the end of what it had started")
    before = states(suite)
    done = efficientbench(*words, limit_s=4 * TIME_LIMIT_S, expect=0)
    assert "Traceback" not in done.stdout + done.stderr
    after = states(suite)
    assert {each["state"] for each in after.values()} == {"done"}
    kept = [name for name, state in before.items() if state["state"] == "done"]
    assert kept
    assert all(after[name]["attempts"] == before[name]["attempts"] for name in kept)
    cells = [f"{name}_{size}__{ratio}x" for name in ("gqa", "mla") for size in ("8k", "16k", "32k") for ratio in RATIOS]
    assert {name for name in after if "rate=" not in name} == {f"{cell}__seed_1234" for cell in cells}
    found = {cell: record(suite / cell / "seed_1234") for cell in cells}
    for cell, each in found.items():
        other = found[cell.replace("mla", "gqa")]
        assert each["tokens_trained"] == other["tokens_trained"]
        assert each["flops_per_token"] == pytest.approx(other["flops_per_token"], rel=0.03)
        assert each["config"]["training"]["lr_schedule"] == "trapezoid"
    # Every shorter run continued the longest of its seed, whose state is not needed any more.
    begun = {cell: each["config"]["init"] for cell, each in found.items() if each["config"]["init"]["run"]}
    assert {cell: Path(init["run"]) for cell, init in begun.items()} == {
        cell: suite / re.sub("__[48]x", "__16x", cell) / "seed_1234" for cell in cells if not cell.endswith("__16x")
    }
    assert not [each for init in begun.values() for each in Path(init["run"]).glob(f"checkpoint/*{init['step']:08d}")]
    answers = [json.loads((suite / "study.json").read_text(encoding="utf-8"))]
    check_study(answers[0])
    assert [line["state"] for line in answers[0]["runs"]] == ["complete"] * len(cells)
    again = efficientbench("study", str(file), "--verdict", f"output={suite}", *SHORT, expect=0)
    answers.append(json.loads((suite / "study.json").read_text(encoding="utf-8")))
    assert "The answer" in (suite / "study.md").read_text(encoding="utf-8")
    assert str(suite / "study.html") in again.stdout
    assert answers[0]["findings"] == answers[1]["findings"]


@pytest.mark.proof
def test_two_calls_of_one_study_share_its_runs_and_measure_generation_once(tmp_path: Path, cache: str) -> None:
    suite = tmp_path / "suite"
    rates = {name: dict.fromkeys(("8k", "16k", "32k"), 0.03) for name in ("gqa", "mla")}
    file = write_study(tmp_path / "mine.yaml", tokens_per_parameter=list(RATIOS), learning_rate=rates)
    words = ("study", str(file), f"output={suite}", f"data.cache={cache}", "device=cpu", "--generate", *SHORT)
    with started(*words) as first, started(*words) as second:
        told = [each.communicate(timeout=4 * TIME_LIMIT_S) for each in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], told
    assert "Traceback" not in "".join(text for each in told for text in each)
    after = states(suite)
    assert {each["state"] for each in after.values()} == {"done"}
    assert len(after) == 2 * 3 * len(RATIOS)
    generated = {path.parent.parent.name for path in suite.glob("*/*/generation.json")}
    assert generated == {"gqa_32k__16x", "mla_32k__16x"}
    # Each run was trained once, by one of the two.
    for name, state in after.items():
        assert state["attempts"] == 1 + (name.partition("__seed")[0] in generated), name
    answer = json.loads((suite / "study.json").read_text(encoding="utf-8"))
    assert {line["state"] for line in answer["runs"]} == {"complete"}
    assert answer["findings"]["cost_sources"]["serving"].startswith("measured at 32k")
