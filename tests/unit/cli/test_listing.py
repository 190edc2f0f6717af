"""What `list` and `keys` print: every example of their help finds what it looks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from support import outside
from typer.testing import CliRunner

from efficientbench.basics.errors import ConfigError
from efficientbench.cli import examples
from efficientbench.cli.app import app
from efficientbench.cli.listing import list_keys, list_runs
from efficientbench.data_tools.chat.find_task import TASKS
from efficientbench.data_tools.cli import app as data_app
from efficientbench.evaluation.registry import check_names

QWEN = "Qwen/Qwen2.5-{}-Instruct"
EXAMPLES = {
    "list": ("mqa_0.5B", "nanochat_d12", "sft_d20"),
    "list gqa": ("gqa_3B", "gqa_7B"),
    "list 7B": ("mla_7B", "mha_7B"),
    "keys": ("training.seq_len", "parallel.tp", "output"),
    "keys parallel": ("parallel.tp", "also tp"),
    "keys batch": ("training.global_batch_tokens", "also total_batch_size"),
}
"""What each example prints, among other lines."""


def test_every_example_of_list_and_keys_is_tested_here() -> None:
    assert [*examples.EXAMPLES["list"], *examples.EXAMPLES["keys"]] == list(EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_prints_the_entries_that_it_searches_for(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, *words = example.split()
    if command == "list":
        list_runs(words)
    else:
        list_keys(*words)
    printed = capsys.readouterr().out
    assert [name for name in EXAMPLES[example] if name not in printed] == []


def test_a_word_finds_each_run_once_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    list_runs(["mla_"])
    rows, _, _ = capsys.readouterr().out.partition("\n\n")
    names = [line.split()[0] for line in rows.splitlines()[1:]]
    assert names[:3] == ["mla_0.5B", "mla_1.5B", "mla_3B"]
    assert "mla_7B" in names
    assert len(names) == len(set(names))
    assert all(name.startswith("mla_") for name in names)


def test_words_may_be_a_list_as_only_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    list_runs(["mla", "gqa"])
    apart = capsys.readouterr().out
    list_runs(["mla, gqa"])
    assert capsys.readouterr().out == apart


def test_words_without_a_match_are_reported() -> None:
    with pytest.raises(ConfigError, match="no run has gqb in its name or suite"):
        list_runs(["gqb"])
    with pytest.raises(ConfigError, match=r"lerning_rate: unknown key; did you mean training\.learning_rate\?"):
        list_keys("lerning_rate")


def test_an_invalid_run_of_a_users_matrix_is_a_row_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("variants: {v: {model: {attention: {query_groups: 5}}}}\nsuites: {}\n")
    list_runs(["v_1.5B"], path)
    assert re.search(r"^v_1\.5B +n/a +n/a +other", capsys.readouterr().out, re.MULTILINE)


def test_fine_tunings_are_listed_where_a_word_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    list_runs(["dora"])
    names = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert names[:3] == [["fine-tuning", "base", "model"], ["dora_tiny", "tiny"], ["dora_0.5B", QWEN.format("0.5B")]]
    assert len(names) == 7
    list_runs(["7B"])
    runs, _, tunings = capsys.readouterr().out.partition("\nfine-tuning ")
    assert ("mla_7B" in runs, "lora_7B" in runs, "lora_7B" in tunings) == (True, False, True)
    list_runs([])
    ends = capsys.readouterr().out.splitlines()[-2:]
    assert ends == [
        "Fine-tunings: efficientbench list finetuning.",
        "Chat tasks and rewards: efficientbench list tasks rewards.",
    ]


def test_keys_of_fine_tunings_follow_those_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    list_keys("lora_alpha")
    title, key, *_ = capsys.readouterr().out.splitlines()
    assert title == "of fine-tunings (efficientbench finetune):"
    assert key.split() == ["adapter.alpha", "=", "128.0", "also", "lora_alpha"]
    list_keys("warmup_st")
    runs, _, tunings = capsys.readouterr().out.partition("\nof fine-tunings (efficientbench finetune):\n")
    assert "measurement.warmup_steps = 5" in runs
    assert "training.warmup_steps = unset" in tunings


def help_of(group: typer.Typer, command: str) -> str:
    return " ".join(CliRunner().invoke(group, [command, "--help"], terminal_width=100).output.split())


def test_tasks_and_rewards_are_listed_and_external_ones_by_their_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outside.lay_out(tmp_path, monkeypatch)
    outside.install(tmp_path, "efficientbench.tasks", "my_spelling", "hostile:Spelling")
    outside.install(tmp_path, "efficientbench.rewards", "my_brevity", "hostile:brevity")
    list_runs(["tasks", "rewards"])
    printed = capsys.readouterr().out
    for name, task in TASKS.items():
        assert re.search(rf"^{name} +task +{task.about}", printed, re.MULTILINE)
    assert re.search(r"^gsm8k +reward +that of the task gsm8k", printed, re.MULTILINE)
    assert re.search(r"^my_spelling +hostile:Spelling +--tasks, rl.task", printed, re.MULTILINE)
    assert re.search(r"^my_brevity +hostile:brevity +rl.reward", printed, re.MULTILINE)
    monkeypatch.setenv("COLUMNS", "40")
    list_runs(["my_spell"])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["installed", "from", "value", "of"],
        ["my_spelling", "hostile:Spelling", "--tasks,", "rl.task"],
    ]
    monkeypatch.delenv("COLUMNS")
    assert "gsm8k, humaneval, messages, my_spelling, package.module:Class" in help_of(data_app, "chat")
    assert "needle, position_loss, my_spelling, package.module:Class" in help_of(app, "evaluate")
    check_names(["my_spelling"])
    assert not (tmp_path / "ran").exists()
