"""The report card: which runs are stages of one model, their rows, sums and reasons."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from support.generated import failed_row, generation, row
from support.metrics_parts import make_record

from efficientbench.metrics.records.generation.generation import GENERATION_NAME, write_generation
from efficientbench.metrics.records.record import RECORD_NAME, write_record
from efficientbench.metrics.records.record_parts import DataSource, PhaseCost, Reinforcement
from efficientbench.metrics.report.build import build_report
from efficientbench.metrics.report.sections.card import CARD_NAME, card_table, load_pipelines
from efficientbench.metrics.report.sections.evaluations import evaluations_table, load_evaluations
from efficientbench.metrics.report.sections.stage_changes import stage_changes

NO_SENSOR = "no sensor of energy"


def write_stage(folder: Path, objective: str, before: Path | None, **values: Any) -> Path:
    """Write the record and a checkpoint's manifest of a run of an hour on four devices, for `energy_j` in all steps."""
    folder.mkdir(parents=True)
    manifest = folder / "checkpoint" / "step_00000006" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(folder.name)
    init: dict[str, Any] = {}
    if before is not None:
        digest = hashlib.sha256((before / "checkpoint" / "step_00000006" / "manifest.json").read_bytes()).hexdigest()
        init = {"run": f"/elsewhere/runs/{before.parent.name}/{before.name}", "step": 6, "sha256": digest}
    config = {"training": {"objective": objective}, "init": init, "rl": {"samples": 4}}
    # A tenth of the tokens was measured, on four devices for 45 minutes in all.
    measured: dict[str, Any] = {"tokens": 100_000, "tokens_trained": 1_000_000, "tokens_per_s": 1_000_000 / 2700}
    joules = values.pop("energy_j", None)
    if joules is not None:
        measured |= {"energy_j": joules / 10, "energy_j_per_token": joules / 1_000_000}
    facts = {"run": folder.name, "duration_s": 3600.0, "devices": 4, "config": config, **measured, **values}
    write_record(make_record(facts, NO_SENSOR), folder / RECORD_NAME)
    return folder


def write_evaluation(folder: Path, task: str, **figures: float) -> None:
    (folder / "evaluation").mkdir(exist_ok=True)
    content = {"step": 6, "items": 20, "figures": figures, "unavailable": {}}
    (folder / "evaluation" / f"{task}.json").write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three stages of one architecture, two of another, and a run that is no stage."""
    text = [DataSource("web text", 1.0, 10, 2_000_000, "a", "b")]
    base = write_stage(
        tmp_path / "gqa" / "base",
        "pretrain",
        None,
        validation_loss=3.25,
        energy_j=2e6,
        data=text,
    )
    mid = write_stage(tmp_path / "gqa" / "mid", "pretrain", base, energy_j=5e5)
    sft = write_stage(tmp_path / "gqa" / "sft", "sft", mid, status="stopped", validation_loss=1.5)
    write_evaluation(base, "core", core=0.12, hellaswag=0.3)
    write_evaluation(sft, "arc_easy", accuracy=0.4)
    other = write_stage(tmp_path / "mla" / "base", "pretrain", None, energy_j=1e6)
    write_stage(tmp_path / "mla" / "sft", "sft", other, energy_j=2e5)
    write_stage(tmp_path / "alone", "pretrain", None)
    return tmp_path


def test_every_stage_has_a_row_and_every_pipeline_its_sums(folder: Path) -> None:
    table = card_table(load_pipelines(folder), evaluations_table(load_evaluations(folder)[0]), price_per_hour=2.5)
    costs = ("hours", "device hours", "training device hours", "training kJ", "cost")
    header = ("pipeline", "stage", "data", "tokens", "loss", "core", "arc_easy", *costs)
    assert tuple(table.header) == header
    assert [tuple(row) for row in table.rows] == [
        ("gqa/sft", "base", "web text (2.00M)", "1.00M", "3.2500", "0.12 n 20", "n/a", "1", "4", "3", "2,000", "10"),
        ("gqa/sft", "mid", "n/a", "1.00M", "n/a", "n/a", "n/a", "1", "4", "3", "500", "10"),
        ("gqa/sft", "SFT (stopped)", "n/a", "1.00M", "1.5000", "n/a", "0.4 n 20", "1", "4", "3", "n/a", "10"),
        ("gqa/sft", "RL", *["n/a"] * 10),
        ("gqa/sft", "all", *[""] * 5, "3", "12", "9", "n/a", "30"),
        ("mla/sft", "base", "n/a", "1.00M", *["n/a"] * 3, "1", "4", "3", "1,000", "10"),
        ("mla/sft", "mid", *["n/a"] * 10),
        ("mla/sft", "SFT", "n/a", "1.00M", *["n/a"] * 3, "1", "4", "3", "200", "10"),
        ("mla/sft", "RL", *["n/a"] * 10),
        ("mla/sft", "all", *[""] * 5, "2", "8", "6", "1,200", "20"),
    ]
    assert "n/a RL of gqa/sft: no such run belongs to it." in table.notes
    assert "n/a mid, RL of mla/sft: no such run belongs to it." in table.notes
    assert f"n/a training kJ of gqa/sft: energy_j_per_token: {NO_SENSOR}" in table.notes
    assert "n/a core, arc_easy of gqa/mid: not evaluated." in table.notes
    without = card_table(load_pipelines(folder), evaluations_table(load_evaluations(folder)[0]), price_per_hour=None)
    assert tuple(without.header) == header[:-1]
    assert "No cost: it needs the price of a device and hour (--price-per-hour X)." in without.notes


def test_a_base_that_was_retrained_is_no_stage_of_its_successors(folder: Path) -> None:
    (folder / "gqa" / "base" / "checkpoint" / "step_00000006" / "manifest.json").write_text("another")
    pipelines = load_pipelines(folder)
    assert [[stage.run for stage in pipeline] for pipeline in pipelines] == [
        ["gqa/mid", "gqa/sft"],
        ["mla/base", "mla/sft"],
    ]
    table = card_table(pipelines, evaluations_table(load_evaluations(folder)[0]), None)
    began = "gqa/mid began with /elsewhere/runs/gqa/base, which is not below this folder, or has changed since"
    assert f"{began}: the sums of gqa/sft are not known." in table.notes
    sums = [row[-4:] for row in table.rows if row[1] == "all"]
    assert sums == [("n/a",) * 4, ("2", "8", "6", "1,200")]


def learned_by_reward(rollouts_j: float | None) -> Reinforcement:
    """What a run recorded that sampled for as long as it updated."""
    costs = PhaseCost(100.0, 5_000, rollouts_j), PhaseCost(100.0, 8_000, 1e5)
    return Reinforcement(160, 12, 0, 0.104, 0.3, *costs, files_sha256=[])


def test_an_rl_stage_includes_the_energy_of_its_answers_and_reports_its_rewards(folder: Path) -> None:
    text = [DataSource("talks it validates on", 1.0, 10, 2_000_000, "a", "b")]
    # 160 questions with 4 answers each are 40 steps of 16, of which 20 were measured.
    facts: dict[str, Any] = {"energy_j": 1e6, "data": text, "tokens_trained": None, "steps_measured": 20}
    sft = folder / "mla" / "sft"
    write_stage(folder / "mla" / "rl", "rl", sft, **facts, reinforcement=learned_by_reward(4e5))
    write_stage(folder / "mla" / "rl2", "rl", sft, **facts, reinforcement=learned_by_reward(None))
    table = card_table(load_pipelines(folder), evaluations_table(load_evaluations(folder)[0]), None)
    rows = {(row[0], row[1]): tuple(row) for row in table.rows}
    assert rows["mla/rl", "RL"][2:] == ("answers to 160 questions", *["n/a"] * 4, "1", "4", "0.822", "1,000")
    assert rows["mla/rl", "all"][-1] == "2,200"
    assert (rows["mla/rl2", "RL"][-1], rows["mla/rl2", "all"][-1]) == ("n/a", "n/a")
    assert "n/a training kJ of mla/rl2: the energy of the answers was not measured" in table.notes
    told = (
        "mla/rl: mean reward 0.104 in its first ten steps, 0.3 in its last ten; 12 of 160 questions taught nothing, "
        "since their answers all had one reward."
    )
    assert told in table.notes


def test_an_absent_score_has_a_reason(folder: Path) -> None:
    content = {"step": 6, "items": 20, "figures": {"core": None}, "unavailable": {"core": "19 of 22 tasks are missing"}}
    for run in ("gqa/base", "alone"):
        (folder / run / "evaluation").mkdir(exist_ok=True)
        (folder / run / "evaluation" / "core.json").write_text(json.dumps(content))
    table = card_table(load_pipelines(folder), evaluations_table(load_evaluations(folder)[0]), None)
    assert table.rows[0][5] == "n/a"
    assert "n/a core: 19 of 22 tasks are missing" in table.notes
    assert "n/a core, arc_easy of gqa/mid: not evaluated." in table.notes


def answer(folder: Path, task: str, right: Sequence[bool], step: int, limit: int | None = None) -> None:
    """Write what `evaluate` writes of a task of right and wrong answers."""
    (folder / "evaluation").mkdir(exist_ok=True)
    header = {"task": task, "step": step, "settings": {"limit": limit}}
    share, count = sum(right) / len(right), len(right)
    parts = {"standard_error": (share * (1 - share) / (count - 1)) ** 0.5}
    content = {**header, "items": count, "figures": {"accuracy": share}, "unavailable": {}, "parts": parts}
    (folder / "evaluation" / f"{task}.json").write_text(json.dumps(content))
    items = [{"item": f"row/{n}", "prompt_sha256": f"{n}", "right": each} for n, each in enumerate(right)]
    lines = "".join(json.dumps(line) + "\n" for line in (header, *items))
    (folder / "evaluation" / f"{task}.jsonl").write_text(lines)


def test_a_score_has_its_interval_its_items_and_its_limit(folder: Path) -> None:
    answer(folder / "gqa" / "mid", "mmlu", [True] * 4 + [False] * 8, step=5, limit=12)
    answer(folder / "gqa" / "sft", "mmlu", [False] * 10 + [True] * 2, step=6, limit=12)
    answer(folder / "mla" / "sft", "mmlu", [False] * 30, step=6)
    table = card_table(load_pipelines(folder), evaluations_table(load_evaluations(folder)[0]), None)
    cells = {tuple(row[:2]): dict(zip(table.header, row, strict=True))["mmlu"] for row in table.rows}
    wilson = [stats.binomtest(right, items).proportion_ci(method="wilson") for right, items in ((4, 12), (2, 12))]
    ranges = [f"{each.low:.3g} to {each.high:.3g}" for each in wilson]
    assert cells["gqa/sft", "mid"] == f"0.3333 ({ranges[0]}) n 12 limit 12"
    assert cells["gqa/sft", "SFT (stopped)"] == f"0.1667 ({ranges[1]}) n 12 limit 12"
    assert cells["mla/sft", "SFT"] == "0 (0 to 0.114) n 30"
    assert any(note.startswith("Scores: in brackets the 95 % interval over items") for note in table.notes)


def test_stages_are_paired_on_the_items_that_both_were_given(folder: Path) -> None:
    rights = [True] * 30 + [False] * 30, [True] * 50 + [False] * 10
    for run, right, step in (("mid", rights[0], 5), ("sft", rights[1], 6)):
        answer(folder / "gqa" / run, "mmlu", right, step)
        answer(folder / "gqa" / run, "arc_easy", [True, False] * 6, step)
    report = build_report(folder)
    table = stage_changes(report.pipelines)
    assert tuple(table.header[:3]) == ("pipeline", "stages", "task")
    shown = {row[2]: tuple(row) for row in table.rows}
    # McNemar: 20 answers became right and none wrong; by Holm's correction twice that, of two tasks.
    assert shown["mmlu"][:7] == ("gqa/sft", "mid → SFT", "mmlu", "60", "50.0%", "83.3%", "+33.3%")
    assert shown["mmlu"][-2:] == (f"{2 * stats.binomtest(0, 20).pvalue:.2g}", "checkpoints differ")
    assert shown["arc_easy"][-2:] == ("1", "no difference shown")
    # Stages are of other steps by nature.
    assert not any("evaluated otherwise" in note for note in table.notes)
    text = (folder / CARD_NAME).read_text()
    assert "## What each stage changed, on the same items" in text
    assert "| gqa/sft | mid → SFT | mmlu | 60 |" in text
    assert "What each stage changed" in (folder / "report.html").read_text()


def test_stages_with_other_items_or_damaged_ones_are_told(folder: Path) -> None:
    answer(folder / "gqa" / "mid", "mmlu", [True, False] * 10, step=5, limit=20)
    answer(folder / "gqa" / "sft", "mmlu", [True, False] * 6, step=6, limit=12)
    table = stage_changes(load_pipelines(folder))
    assert [row[3] for row in table.rows] == ["12"]
    assert "gqa/sft, mmlu: 8 items have no partner in gqa/mid" in table.notes
    assert "mid → SFT of gqa/sft, mmlu: A and B were evaluated otherwise: limit 20 and 12" in table.notes
    with (folder / "gqa" / "mid" / "evaluation" / "mmlu.jsonl").open("a") as file:
        file.write("{}\n")
    table = stage_changes(load_pipelines(folder))
    assert [tuple(row) for row in table.rows] == [("gqa/sft", *["n/a"] * 9)]
    assert any("mmlu.jsonl, line 22: it is no result of an item" in note for note in table.notes)


def test_hours_of_the_last_attempt_alone_are_no_cost(tmp_path: Path) -> None:
    base = write_stage(tmp_path / "base", "pretrain", None, resumed_after_steps=[2, 5])
    write_stage(tmp_path / "sft", "sft", base)
    table = card_table(load_pipelines(tmp_path), evaluations_table(load_evaluations(tmp_path)[0]), None)
    assert "n/a hours of base: the wall time of its attempts before the last one is not known" in table.notes
    assert [dict(zip(table.header, row, strict=True))["hours"] for row in table.rows] == [
        "n/a",
        "n/a",
        "1",
        "n/a",
        "n/a",
    ]
    assert "base was resumed after step 2, 5: its training costs are at its last attempt's rates." in table.notes
    assert not any(note.startswith("sft was resumed") for note in table.notes)


def test_hours_cover_all_attempts_where_they_are_known(tmp_path: Path) -> None:
    times = {"resumed_after_steps": [2], "duration_s": 1800.0, "wall_s": 36_000.0}
    write_stage(tmp_path / "sft", "sft", write_stage(tmp_path / "base", "pretrain", None, **times))
    table = card_table(load_pipelines(tmp_path), evaluations_table(load_evaluations(tmp_path)[0]), None)
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert row["hours"] == "10"


def test_a_report_of_staged_runs_has_the_card(folder: Path) -> None:
    report = build_report(folder, price_per_hour=2.5)
    assert folder / CARD_NAME in report.written
    text = (folder / CARD_NAME).read_text()
    assert "| gqa/sft | mid | n/a | 1.00M |" in text
    assert "## Environment" in text
    assert "Trace 9000" in text
    assert '<section id="card"><h2>Report card</h2>' in (folder / "report.html").read_text()
    alone = build_report(folder / "alone")
    assert not (folder / "alone" / CARD_NAME).exists()
    assert all(path.name != CARD_NAME for path in alone.written)
    assert 'id="card"' not in (folder / "alone" / "report.html").read_text()


def test_the_card_shows_the_cost_of_answers_at_a_common_combination(folder: Path) -> None:
    without = card_table(load_pipelines(folder), evaluations_table(load_evaluations(folder)[0]), None)
    assert without.notes[-1] == "No generation was measured: efficientbench generate RUN --measure does so."
    of_mla = [row("mla", 128, 8), row("mla", 16_384, 1, joules=None), failed_row(2048, 1, "out of memory")]
    write_generation(generation("gqa"), folder / "gqa" / "sft" / GENERATION_NAME)
    write_generation(generation("mla", rows=of_mla), folder / "mla" / "sft" / GENERATION_NAME)
    table = card_table(load_pipelines(folder), evaluations_table(load_evaluations(folder)[0]), None)
    assert tuple(table.header[7:10]) == ("TTFT p50, ms", "decode tokens/s", "decode J/token")
    cells = {(line[0], line[1]): tuple(line[7:10]) for line in table.rows}
    # Cache and weights are read at 1 TB/s.
    assert cells["gqa/sft", "SFT (stopped)"] == ("17.4", "831.9", "0.02")
    assert cells["mla/sft", "SFT"] == ("17.4", "897.9", "n/a")
    assert (cells["gqa/sft", "base"], cells["gqa/sft", "all"]) == (("n/a",) * 3, ("",) * 3)
    assert "Generation: prompts of 16,384 tokens, batch 1, 64 new tokens." in table.notes
    assert "n/a decode J/token of mla/sft: no sensor of energy" in table.notes
    titles = ", ".join(table.header[7:10])
    assert f"n/a {titles} of gqa/base, gqa/mid, mla/base: not measured." in table.notes


def test_models_measured_under_different_conditions_are_not_compared(folder: Path) -> None:
    write_generation(generation("gqa", rows=[row("gqa", 128, 1)]), folder / "gqa" / "sft" / GENERATION_NAME)
    compiled = generation("mla", rows=[row("mla", 128, 1)], steps="compiled")
    write_generation(compiled, folder / "mla" / "sft" / GENERATION_NAME)
    table = card_table(load_pipelines(folder), evaluations_table(load_evaluations(folder)[0]), None)
    assert {tuple(line[7:10]) for line in table.rows} == {("n/a",) * 3, ("",) * 3}
    assert "measured under different conditions, steps: " in table.notes[-1]


def test_combinations_that_differ_are_not_compared(folder: Path) -> None:
    write_generation(generation("gqa", rows=[row("gqa", 128, 1)]), folder / "gqa" / "sft" / GENERATION_NAME)
    write_generation(generation("mla", rows=[row("mla", 128, 8)]), folder / "mla" / "sft" / GENERATION_NAME)
    table = card_table(load_pipelines(folder), evaluations_table(load_evaluations(folder)[0]), None)
    assert {tuple(line[7:10]) for line in table.rows} == {("n/a",) * 3, ("",) * 3}
    assert table.notes[-1].endswith(
        "of gqa/sft, mla/sft: no combination of prompt, batch and new tokens was measured of all of them."
    )
