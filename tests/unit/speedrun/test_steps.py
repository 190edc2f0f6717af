"""Which commands a pipeline has, which of them it skips, and how it resumes after a kill in any of them."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.generated import generation
from support.repository import ROOT

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.metrics.records.generation.generation import GENERATION_NAME, write_generation
from efficientbench.speedrun import perform
from efficientbench.speedrun.perform import speedrun
from efficientbench.speedrun.request import STAGES, Request
from efficientbench.speedrun.steps import Kind, make_pipeline


def test_the_commands_of_all_stages(request_: Request, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = replace(request_, variants=("mla",), stages=STAGES, limit=7, price_per_hour=2.0, generate=True)
    assert speedrun(replace(asked, overrides=("training.seed=5", "sft:training.steps=70")), dry_run=True) == 0
    printed = capsys.readouterr().out.replace(str(tmp_path), "~")
    work, runs = "~/pipeline", "~/pipeline/runs"
    keys = f"data.path={work}/tokens/{{}} data.cache={work}/cache output={runs} device=cpu{{}} training.seed=5"
    run = f"efficientbench run {{0}}_mla_d4 dsw --matrix {work}/mla_d4.yaml --repeat 1 {keys.format('{1}', '{2}')}"
    tokenizer, folders = f"{work}/tokenizer", {each: f"{runs}/{each}_mla_d4/seed_5" for each in STAGES}
    scored = "--tasks mmlu,gsm8k --data ~/items --limit 7"
    asks = " ".join(
        f"'rl.{name}=~/items/gsm8k/{part}*'" for name, part in (("questions", "train"), ("test_questions", "test"))
    )
    assert [line.strip() for line in printed.splitlines() if line.startswith("   ")] == [
        "efficientbench doctor --device cpu",
        f"efficientbench-data train-tokenizer ~/text.txt --vocab-size 4096 --chat --output {tokenizer}",
        f"efficientbench-data tokenize ~/text.txt --tokenizer {tokenizer} --output {work}/tokens/text",
        f"efficientbench-data chat ~/mid.yaml --tokenizer {tokenizer} --output {work}/tokens/mid",
        f"efficientbench-data chat ~/sft.yaml --tokenizer {tokenizer} --output {work}/tokens/sft",
        run.format("base", "text", ""),
        f"efficientbench evaluate {folders['base']} --tasks core --data ~/items --limit 7",
        run.format("mid", "mid", f" init.run={folders['base']}"),
        f"efficientbench evaluate {folders['mid']} {scored}",
        run.format("sft", "sft", f" init.run={folders['mid']}") + " training.steps=70",
        f"efficientbench evaluate {folders['sft']} {scored}",
        run.format("rl", "sft", f" init.run={folders['sft']} {asks}"),
        f"efficientbench evaluate {folders['rl']} {scored}",
        f"efficientbench generate {folders['rl']} --measure",
        f"efficientbench report {runs} --price-per-hour 2.0",
    ]
    assert "humaneval of mid_mla_d4: skipped: it runs programs that the model writes: --allow-code" in printed
    assert "arc_easy of sft_mla_d4: skipped: ~/items/arc_easy is not there" in printed
    # Nothing is made but the file that names the runs.
    assert {path.name for path in (tmp_path / "pipeline").iterdir()} == {"lock", "mla_d4.yaml"}


def test_without_data_of_ones_own_it_comes_from_the_hub(tmp_path: Path) -> None:
    (tmp_path / "pipeline").mkdir()
    steps = make_pipeline(Request(tmp_path / "pipeline", "cpu", stages=STAGES, devices=4)).steps
    downloads = [step.command[1:] for step in steps if step.command[1:2] == ("download",)]
    assert [" ".join(words).replace(str(tmp_path), "~") for words in downloads] == [
        "download --num-files 3 --output ~/pipeline/text",
        "download openai/gsm8k --config main --output ~/pipeline/gsm8k",
    ]
    trained = [step.command for step in steps if step.kind is Kind.TRAIN]
    assert all("parallel.dp=4" in words for words in trained)
    assert f"rl.questions={tmp_path}/pipeline/gsm8k/main/train*" in trained[-1]
    left_out = {step.name: step.left_out for step in steps if step.left_out}
    assert list(left_out) == ["core of base_d12", *(f"humaneval of {stage}_d12" for stage in STAGES[1:])]


def test_several_nodes_train_before_the_first_evaluates(request_: Request) -> None:
    request_.work.mkdir()
    kinds = [step.kind for step in make_pipeline(replace(request_, mode="dlc", variants=("gqa", "mla"))).steps]
    assert kinds == sorted(kinds, key=lambda kind: kind.value)
    assert kinds.count(Kind.TRAIN) == 6


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which commands write down their words, instead of doing what they say."""
    monkeypatch.setattr(perform, "MODULES", dict.fromkeys(perform.MODULES, "support.staged"))
    monkeypatch.setattr(perform, "POLL_S", 0.01)
    # Nothing is tokenized by a command that only writes down its words.
    monkeypatch.setattr(perform, "check_texts", lambda request, runs: None)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.setenv("STAGED_CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.mark.parametrize("stages", [("base",), pytest.param(("base", "mid"), marks=pytest.mark.proof)])
def test_it_goes_on_after_a_kill_in_each_step(
    request_: Request,
    calls: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    stages: tuple[str, ...],
) -> None:
    request_.work.mkdir()
    request = replace(request_, stages=stages)
    steps = make_pipeline(request).steps
    commands = [step.command[1:] for step in steps if step.command]
    # Runs, evaluations and the report find out by themselves what is done.
    own = [words for words in commands if words[0] in ("run", "evaluate", "report")]
    done: list[tuple[str, ...]] = []
    for number, killed in enumerate(commands):
        calls.write_text("")
        # A command is known by all of its words together.
        monkeypatch.setenv("STAGED_KILLED", shlex.join(killed))
        assert perform.perform(steps, request.work) == 137, "as a shell has it"
        expected = [words for words in commands[: number + 1] if words in own or words not in done]
        assert [tuple(shlex.split(line)) for line in calls.read_text().splitlines()] == expected
        told = "nothing was trained" if number == 0 else "the same command resumes the speedrun"
        assert told in capfd.readouterr().err
        done += [words for words in expected[:-1] if words not in done]
    monkeypatch.delenv("STAGED_KILLED")
    assert speedrun(request) == 0


def test_a_machine_that_fails_its_check_leaves_the_folder_free_for_another_text(
    request_: Request, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_.work.mkdir()
    check = make_pipeline(request_).steps[0]
    monkeypatch.setenv("STAGED_KILLED", shlex.join(check.command[1:]))
    assert speedrun(request_) == 137
    assert not (request_.work / "choices.json").exists()
    monkeypatch.delenv("STAGED_KILLED")
    other = replace(request_, vocabulary=512)
    assert speedrun(other) == 0
    # A dry run refuses what the run would.
    for dry_run in (False, True):
        with pytest.raises(ConfigError, match="was made with vocabulary 512, not 4096"):
            speedrun(request_, dry_run=dry_run)


def test_a_failed_download_names_what_needs_no_network(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "pipeline"
    work.mkdir()
    text = make_pipeline(Request(work, "cpu")).steps[1]
    monkeypatch.setenv("STAGED_KILLED", shlex.join(text.command[1:]))
    assert perform.perform([text], work) == 137
    told = "the same command resumes the speedrun; --smoke, in another --work, needs no network"
    assert capfd.readouterr().err == f"error: text: failed; what is complete stays, and {told}\n"


def test_a_full_disk_is_told_and_more_room_is_used(
    request_: Request, calls: Path, small_disk: Callable[[int], Path]
) -> None:
    disk = small_disk(100)
    (disk / "pipeline").mkdir()
    request = replace(request_, work=disk / "pipeline")
    check = make_pipeline(request).steps[0]
    filling = disk / "filling"
    with contextlib.suppress(OSError), filling.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    with pytest.raises(DataError, match="no space left in .* the same command continues from there"):
        perform.perform([check], request.work)
    filling.unlink()
    assert perform.perform([check], request.work) == 0
    assert check.complete


def test_a_stop_is_passed_on_and_ends_it(
    request_: Request, calls: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    request_.work.mkdir()
    base = next(step.command[1:] for step in make_pipeline(request_).steps if step.kind is Kind.TRAIN)
    monkeypatch.setenv("STAGED_STOPPED", shlex.join(base))
    assert speedrun(request_) == 143
    assert calls.read_text().splitlines()[-1] == shlex.join(base)
    assert capfd.readouterr().err == "stopped: the same command resumes the speedrun\n"


def test_generation_is_measured_once(request_: Request) -> None:
    request_.work.mkdir()
    steps = make_pipeline(replace(request_, stages=("base",), generate=True)).steps
    [step] = [each for each in steps if each.name.startswith("generation of ")]
    folder = Path(step.command[2])
    folder.mkdir(parents=True)
    for status, weights, complete in (("stopped", "step 9", False), ("completed", "random", False)):
        write_generation(generation("gqa", status=status, weights=weights), folder / GENERATION_NAME)
        assert step.complete is complete
    write_generation(generation("gqa", status="completed", weights="step 9"), folder / GENERATION_NAME)
    assert step.complete


def test_items_in_files_of_the_tasks_names_are_evaluated_as_those_in_folders(request_: Request) -> None:
    request_.work.mkdir()
    items = request_.task_data
    assert items is not None
    (items / "mmlu" / "test.jsonl").rename(items / "mmlu.jsonl")
    (items / "mmlu").rmdir()
    request_.check()
    names = [step.name for step in make_pipeline(request_).steps if not step.left_out]
    assert "mmlu,gsm8k of sft_d4" in names
    (items / "mmlu.jsonl").write_text('{"question": "Which?"}\n')
    with pytest.raises(ConfigError, match=r"mmlu\.jsonl:1: "):
        request_.check()


def test_an_evaluation_is_complete_while_weights_items_and_results_stay(request_: Request, calls: Path) -> None:
    request_.work.mkdir()
    request = replace(request_, stages=("base",))
    [step] = [each for each in make_pipeline(request).steps if each.name.startswith("core of ")]
    folder = Path(step.command[2])
    assert request.task_data is not None
    items, result = (
        next((request.task_data / "core" / "eval_data").rglob("*.jsonl")),
        folder / "evaluation" / "core.json",
    )
    weights = folder / "checkpoint" / "step_00000009" / "manifest.json"

    def performed(asked: Request = request) -> int:
        """Return how many processes start for the evaluation."""
        calls.write_text("")
        [same] = [each for each in make_pipeline(asked).steps if each.name == step.name]
        assert perform.perform([same], asked.work) == 0
        return len(calls.read_text().splitlines())

    for path in (weights, result):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    assert [performed(), performed()] == [1, 0]
    assert [performed(replace(request, limit=11)), performed(request)] == [1, 1]
    for path in (weights, result, items):
        path.write_text(path.read_text() + "\n")
        assert [performed(), performed()] == [1, 0]
    result.unlink()
    # The command that was called made nothing.
    assert [performed(), performed()] == [1, 1]


def test_a_report_is_complete_until_a_record_changes(request_: Request, calls: Path) -> None:
    request_.work.mkdir()
    report = make_pipeline(request_).steps[-1]
    record, card = (request_.work / "runs" / name for name in ("base_d4/seed_1234/record.json", "report_card.md"))
    record.parent.mkdir(parents=True)
    for path in (record, card, card.with_name("report.md")):
        path.write_text("{}")
    assert not report.complete
    assert perform.perform([report], request_.work) == 0
    assert report.complete
    record.write_text("{ }")
    assert not report.complete
    assert perform.perform([report], request_.work) == 0
    card.unlink()
    assert not report.complete


def test_the_check_is_of_one_machine_since_it_was_started(request_: Request) -> None:
    request_.work.mkdir()
    check = make_pipeline(request_).steps[0]
    assert check.made is not None
    assert check.mark is not None
    assert os.uname().nodename in check.made.name
    assert not check.complete
    check.made.write_text(str(check.mark()))
    assert make_pipeline(request_).steps[0].complete
    check.made.write_text("another start\n")
    assert not check.complete
