"""Which commands a pipeline has, which of them it skips, and how it goes on after a kill in any of them."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from support.core_bundle import write_bundle
from support.generated import generation
from support.repository import ROOT

from efficientbench.cli.speedrun import speedrun as command
from efficientbench.cli.sweep import sweep
from efficientbench.config.errors import ConfigError
from efficientbench.data_tools.errors import DataError
from efficientbench.metrics.records.generation import GENERATION_NAME, write_generation
from efficientbench.stages import perform
from efficientbench.stages.perform import speedrun
from efficientbench.stages.request import STAGES, Request, keep_choices, kept_request
from efficientbench.stages.steps import Kind, make_pipeline


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    """A short pipeline, all of whose data lies here."""
    (tmp_path / "text.txt").write_text("A text.\n")
    for name in ("mid", "sft"):
        (tmp_path / f"{name}.yaml").write_text(f"tasks: [{{task: messages, path: {name}.jsonl}}]\n")
    for task in ("gsm8k", "mmlu"):
        (tmp_path / "items" / task).mkdir(parents=True)
    for part in ("train", "test"):
        (tmp_path / "items" / "gsm8k" / f"{part}.jsonl").touch()
    write_bundle(tmp_path / "items" / "core", ("copa",))
    mixtures = {name: tmp_path / f"{name}.yaml" for name in ("mid", "sft")}
    folders = {"work": tmp_path / "pipeline", "text": tmp_path / "text.txt", "task_data": tmp_path / "items"}
    return Request(device="cpu", short=True, mixtures=mixtures, **folders)


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
    assert "humaneval of mid_mla_d4: left out: it runs programs that the model writes: --allow-code" in printed
    assert "arc_easy of sft_mla_d4: left out: ~/items/arc_easy is not there" in printed
    # Nothing is made but the file that names the runs.
    assert {path.name for path in (tmp_path / "pipeline").iterdir()} == {"lock", "mla_d4.yaml"}


def test_without_data_of_ones_own_it_comes_from_the_hub(tmp_path: Path) -> None:
    steps = make_pipeline(Request(_made(tmp_path / "pipeline"), "cpu", stages=STAGES, devices=4)).steps
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


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_several_nodes_train_before_the_first_evaluates(request_: Request) -> None:
    _made(request_.work)
    kinds = [step.kind for step in make_pipeline(replace(request_, mode="dlc", variants=("gqa", "mla"))).steps]
    assert kinds == sorted(kinds, key=lambda kind: kind.value)
    assert kinds.count(Kind.TRAIN) == 6


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which commands write down their words, instead of doing what they say."""
    monkeypatch.setattr(perform, "MODULES", dict.fromkeys(perform.MODULES, "support.staged"))
    monkeypatch.setattr(perform, "POLL_S", 0.01)
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
    _made(request_.work)
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
        told = "nothing was trained" if number == 0 else "the same command goes on from here"
        assert told in capfd.readouterr().err
        done += [words for words in expected[:-1] if words not in done]
    monkeypatch.delenv("STAGED_KILLED")
    assert speedrun(request) == 0


def test_a_full_disk_is_told_and_more_room_is_used(
    request_: Request, calls: Path, small_disk: Callable[[int], Path]
) -> None:
    disk = small_disk(100)
    request = replace(request_, work=_made(disk / "pipeline"))
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
    _made(request_.work)
    base = next(step.command[1:] for step in make_pipeline(request_).steps if step.kind is Kind.TRAIN)
    monkeypatch.setenv("STAGED_STOPPED", shlex.join(base))
    assert speedrun(request_) == 143
    assert calls.read_text().splitlines()[-1] == shlex.join(base)
    assert capfd.readouterr().err == "stopped: the same command goes on from here\n"


def test_a_folder_is_made_from_one_text_vocabulary_and_mixture(request_: Request, tmp_path: Path) -> None:
    _made(request_.work)
    keep_choices(request_)
    keep_choices(replace(request_, variants=("mla",), depth=8, limit=3))
    (tmp_path / "other.txt").touch()
    with pytest.raises(
        ConfigError, match=r"pipeline was made with text .*/text\.txt, not .*/other\.txt: choose another"
    ):
        keep_choices(replace(request_, text=tmp_path / "other.txt"))
    with pytest.raises(ConfigError, match="was made with vocabulary 4096, not 512"):
        keep_choices(replace(request_, vocabulary=512))
    (tmp_path / "sft.yaml").write_text("tasks: [{task: gsm8k}]\n")
    with pytest.raises(ConfigError, match="was made with sft "):
        keep_choices(request_)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"overrides": ("stf:training.steps=3",)}, "'stf' is none of the stages base, mid, sft"),
        ({"overrides": ("rl:rl.samples=3",)}, "'rl' is none of the stages base, mid, sft, which --rl adds"),
        ({"overrides": ("tp=2",), "devices": 2}, "--devices and parallel.* keys both set the number of devices"),
        ({"overrides": ("base:parallel.pp=2",), "devices": 2}, "--devices and parallel.* keys both set"),
        ({"text": Path("/no/such/text")}, "--data /no/such/text is not there"),
        ({"mixtures": {"mid": Path("/no/mid.yaml")}}, "--mid /no/mid.yaml is not there"),
        ({"overrides": ("training.stepz=3",)}, "did you mean training.steps"),
        ({"variants": ("mla2",)}, "did you mean mla"),
        ({"limit": 1, "core": ("jeopardy",)}, "give --limit "),
        ({"stages": STAGES, "without": "train.jsonl"}, "--rl: --task-data has no file gsm8k/train*"),
    ],
)
def test_mistakes_end_it_before_anything_is_made(request_: Request, changes: dict, message: str) -> None:
    items = request_.task_data
    assert items is not None
    if "core" in changes:
        write_bundle(items / "core", changes["core"])
    if "without" in changes:
        (items / "gsm8k" / changes["without"]).unlink()
    given = {name: value for name, value in changes.items() if name not in ("core", "without")}
    with pytest.raises(ConfigError, match=re.escape(message)):
        speedrun(replace(request_, **given))
    assert not (request_.work / "tokenizer").exists()


def test_questions_that_are_named_need_no_other_file(request_: Request, tmp_path: Path) -> None:
    (tmp_path / "items" / "gsm8k" / "train.jsonl").unlink()
    with pytest.raises(ConfigError, match="--rl: --task-data has no file gsm8k/train"):
        replace(request_, stages=STAGES).check()
    replace(request_, stages=STAGES, overrides=(f"rl:rl.questions={tmp_path / 'mine.jsonl'}",)).check()


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


def test_a_word_that_is_no_key_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="'frob': a key is written key=value; the modes are dsw and dlc"):
        command(arguments=["frob"], device="cpu")


def test_a_sweep_of_stages_takes_the_data_of_a_speedrun(
    request_: Request, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _made(request_.work)
    asked = replace(request_, limit=5, allow_code=True)
    keep_choices(asked)
    assert kept_request(request_.work, "cpu") == asked
    given = {"work": request_.work, "only": "gqa,mla", "sizes": "d8", "arguments": ["device=cpu", "training.seed=3"]}
    with pytest.raises(typer.Exit) as ended:
        sweep(stages="base,mid", generate=True, dry_run=True, **given)
    assert ended.value.exit_code == 0
    commands = [
        line.split()[1:3] for line in capsys.readouterr().out.splitlines() if line.startswith("   efficientbench ")
    ]
    runs = request_.work / "runs"
    assert commands == [
        ["doctor", "--device"],
        *(
            words
            for variant in ("gqa", "mla")
            for words in (
                ["run", f"base_{variant}_d8"],
                ["evaluate", f"{runs}/base_{variant}_d8/seed_3"],
                ["run", f"mid_{variant}_d8"],
                ["evaluate", f"{runs}/mid_{variant}_d8/seed_3"],
                ["generate", f"{runs}/mid_{variant}_d8/seed_3"],
            )
        ),
        ["report", str(runs)],
    ]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"stages": "base"}, typer.BadParameter, "--stages goes with --work FOLDER"),
        ({"stages": "base", "repeat": 3}, typer.BadParameter, "--repeat means nothing with --stages"),
        ({"stages": "base", "sizes": "0.5B"}, typer.BadParameter, "it is one depth, like d12"),
        ({"stages": "base", "arguments": ["m.yaml"]}, typer.BadParameter, "the runs of --stages are in no matrix"),
        ({"stages": "base"}, ConfigError, "is the folder of no speedrun"),
        (
            {"stages": "mid,base"},
            ConfigError,
            "--stages mid,base: they are the first of base,mid,sft,rl, in this order",
        ),
        ({}, ConfigError, "--stages none: they are the first of"),
    ],
)
def test_mistakes_in_a_sweep_of_stages(request_: Request, given: dict, error: type[Exception], message: str) -> None:
    if error is ConfigError:
        given = {"arguments": ["device=cpu"], "work": _made(request_.work), **given}
        if "no speedrun" not in message:
            keep_choices(request_)
    with pytest.raises(error, match=re.escape(message)):
        sweep(**given)


@pytest.mark.parametrize("content", ["[]", "{", '{"made_from": {}, "asked": {"text": null}}'])
def test_choices_that_cannot_be_read_are_named(request_: Request, content: str) -> None:
    (_made(request_.work) / "choices.json").write_text(content)
    for read in (lambda: keep_choices(request_), lambda: kept_request(request_.work, "cpu")):
        with pytest.raises(DataError, match="does not say from what the folder was made"):
            read()


def test_the_check_is_of_one_machine_since_it_was_started(request_: Request) -> None:
    _made(request_.work)
    check = make_pipeline(request_).steps[0]
    assert check.made is not None
    assert check.mark is not None
    assert os.uname().nodename in check.made.name
    assert not check.complete
    check.made.write_text(check.mark)
    assert make_pipeline(request_).steps[0].complete
    check.made.write_text("another start\n")
    assert not check.complete
