"""What `list` and `keys` print: every example of their help finds what it looks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from efficientbench.cli.words import list_keys, list_runs
from efficientbench.config.errors import ConfigError

EXAMPLES = {
    "list": ("mqa_0.5B", "nanochat_d12", "sft_d20"),
    "list gqa": ("gqa_3B", "gqa_7B"),
    "list 7B": ("mla_7B", "mha_7B"),
    "keys": ("training.seq_len", "parallel.tp", "output"),
    "keys parallel": ("parallel.tp", "also tp"),
    "keys batch": ("training.global_batch_tokens", "also total_batch_size"),
}
"""What each example prints, among other lines."""


def test_these_are_the_examples() -> None:
    helps = f"{list_runs.__doc__}{list_keys.__doc__}"
    assert re.findall(r"efficientbench ([^;\n]+)", helps) == list(EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_prints_what_it_looks_for(example: str, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_words_that_find_nothing_are_told() -> None:
    with pytest.raises(ConfigError, match="no run has gqb in its name or suite"):
        list_runs(["gqb"])
    with pytest.raises(ConfigError, match=r"lerning_rate: unknown key; did you mean training\.learning_rate\?"):
        list_keys("lerning_rate")


def test_what_does_not_fit_in_a_matrix_of_ones_own_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("variants: {v: {model: {attention: {query_groups: 5}}}}\nsuites: {}\n")
    list_runs(["v_1.5B"], path)
    assert re.search(r"^v_1\.5B +n/a +n/a +other", capsys.readouterr().out, re.MULTILINE)
