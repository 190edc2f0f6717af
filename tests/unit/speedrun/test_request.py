"""What a pipeline is asked for: what is refused before anything is made, and what a folder remembers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from support.chat_tokenizers import of_words
from support.conversation_pairs import write_conversations
from support.core_bundle import write_bundle

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.cli.speedrun import speedrun as command
from efficientbench.cli.sweep import sweep
from efficientbench.data_tools.chat.build import build_conversations
from efficientbench.devices.registry import device_called
from efficientbench.running.micro_batch import FILE, decide_together
from efficientbench.speedrun.check import check_runs, check_texts
from efficientbench.speedrun.perform import speedrun
from efficientbench.speedrun.request import STAGES, Request, keep_choices, kept_request
from efficientbench.speedrun.steps import make_pipeline


def test_a_folder_is_made_from_one_text_vocabulary_and_mixture(request_: Request, tmp_path: Path) -> None:
    request_.work.mkdir()
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
        ({"overrides": ("sft:training.steps=4",)}, "sft_d4: training.steps: 4 of the 15 steps that 5 of warm-up"),
        (
            {"overrides": ("mid:training.micro_batch_size=3",)},
            "mid_d4: training.global_batch_size: 4 is not a multiple",
        ),
        (
            {"stages": STAGES, "overrides": ("rl:training.steps=4", "rl:rl.reward=no_such_rewards:right")},
            "rl_d4: reward no_such_rewards:right",
        ),
        ({"stages": STAGES, "overrides": ("rl:rl.questions=/no/rows.jsonl",)}, "rl_d4: "),
        ({"depth": 300}, "3 problems:\n  base_d300 does not fit"),
        ({"overrides": ("checkpoint.keep=100000000",)}, "the checkpoints of all stages take up to "),
        (
            {"overrides": ("mid:model.layers=3",)},
            "mid_d4: init.run: base_d4 is of another model than this run: model.l",
        ),
        ({"overrides": ("sft:init.run=/no/such/run",)}, "sft_d4: init.run: "),
        (
            {"overrides": ("mid:evaluation.core_every=9", "mid:evaluation.core_data=/no/core")},
            "mid_d4: evaluation.core_data: /no/core: no such folder",
        ),
        ({"overrides": ("output=/mine",)}, "output=/mine: the runs of a speedrun lie in its own folder: give --work"),
        ({"overrides": ("data.path=/no/text",)}, "base_d4: data.path: /no/text is no tokenized text; a speedrun makes"),
        ({"overrides": ("sft:data.path=/no/text",)}, "sft_d4: data.path: /no/text is no tokenized text; a speedrun"),
        ({"damaged": "mmlu/test.jsonl"}, "mmlu/test.jsonl:1: "),
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
    if "damaged" in changes:
        (items / changes["damaged"]).write_text('{"question": "Which?"}\n')
    given = {name: value for name, value in changes.items() if name not in ("core", "without", "damaged")}
    with pytest.raises(ConfigError, match=re.escape(message)):
        speedrun(replace(request_, **given))
    assert not (request_.work / "tokenizer").exists()


def test_a_text_that_does_not_suit_its_run_is_refused_before_any_trains(request_: Request, tmp_path: Path) -> None:
    pair = write_conversations(tmp_path / "pair", 3)
    request_.work.mkdir()
    request = replace(request_, overrides=(f"sft:data.path={pair}",))
    with pytest.raises(ConfigError, match=r"^sft_d4: data\.split: \[9\.0, 1\.0, 0\.0\] leaves none of the 3 doc"):
        check_texts(request, make_pipeline(request).runs)


def test_a_text_with_another_tokenizer_than_the_stage_before_is_refused(request_: Request, tmp_path: Path) -> None:
    pair = write_conversations(tmp_path / "mid_pair", 40)
    of_words(tmp_path / "words", ["What is this? This is a word."])
    other = build_conversations(tmp_path / "mid_pair" / "mixture.yaml", tmp_path / "other", tmp_path / "words").prefix
    request_.work.mkdir()
    request = replace(request_, overrides=(f"mid:data.path={pair}", f"sft:data.path={other}"))
    with pytest.raises(
        ConfigError, match=r"^sft_d4: data\.path: .*/other was made with another tokenizer than .*/chat"
    ):
        check_texts(request, make_pipeline(request).runs)


def test_a_micro_batch_of_auto_is_one_that_every_stage_can_use(request_: Request) -> None:
    request_.work.mkdir()
    sizes = ("training.micro_batch_size=auto", "training.global_batch_size=8", "sft:training.global_batch_size=12")
    request = replace(request_, overrides=sizes)
    runs = make_pipeline(request).runs
    assert [decide_together(each, "dsw", trial=False) for each in (runs[:1], runs)] == [8, 4]
    check_runs(request, runs)
    # A trial of the base alone, as an earlier attempt or a run of its own has left it.
    (request.work / "runs").mkdir()
    content = {"micro_batch_size": 8, "device": device_called("cpu").names()[0]}
    (request.work / "runs" / FILE).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="auto is 8 in this suite"):
        check_runs(request, runs)


def test_questions_that_are_named_need_no_other_file(request_: Request, tmp_path: Path) -> None:
    (tmp_path / "items" / "gsm8k" / "train.jsonl").unlink()
    with pytest.raises(ConfigError, match="--rl: --task-data has no file gsm8k/train"):
        replace(request_, stages=STAGES).check()
    replace(request_, stages=STAGES, overrides=(f"rl:rl.questions={tmp_path / 'mine.jsonl'}",)).check()


def test_a_word_that_is_no_key_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="'frob': a key is written key=value; the modes are dsw and dlc"):
        command(arguments=["frob"], device="cpu")


def test_a_sweep_of_stages_takes_the_data_of_a_speedrun(
    request_: Request, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request_.work.mkdir()
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
        request_.work.mkdir()
        given = {"arguments": ["device=cpu"], "work": request_.work, **given}
        if "no speedrun" not in message:
            keep_choices(request_)
    with pytest.raises(error, match=re.escape(message)):
        sweep(**given)


@pytest.mark.parametrize("content", ["[]", "{", '{"made_from": {}, "asked": {"text": null}}'])
def test_choices_that_cannot_be_read_are_named(request_: Request, content: str) -> None:
    request_.work.mkdir()
    (request_.work / "choices.json").write_text(content)
    for read in (lambda: keep_choices(request_), lambda: kept_request(request_.work, "cpu")):
        with pytest.raises(DataError, match="does not say from what the folder was made"):
            read()
