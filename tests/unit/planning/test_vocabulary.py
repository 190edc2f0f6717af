"""A model takes the vocabulary of its text's tokenizer where no key sets another; plan and run agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from efficientbench.basics.errors import ConfigError, DataError
from efficientbench.cli.app import app
from efficientbench.config.load import resolve
from efficientbench.costs.model import count_parameters
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer, train_tokenizer
from efficientbench.planning.vocabulary import resolve_run
from efficientbench.running.corpora import prepare_corpora
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.selection import Request
from efficientbench.sweep.tasks import build_tasks


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with more tokens than a smoke model has: each number below 1,000 becomes one."""
    folder = tmp_path_factory.mktemp("tokenizer") / "numbers"
    train_tokenizer([" ".join(f"{number:03d}" for number in range(1000)) * 3], 1200, folder)
    assert load_tokenizer(folder).vocab_size > 1024
    return folder


def test_a_smoke_model_uses_and_reports_the_tokenizers_vocabulary(tokenizer: Path) -> None:
    size = load_tokenizer(tokenizer).vocab_size
    config, said = resolve_run("gqa_0.5B", True, [f"data.tokenizer={tokenizer}"])
    small = resolve("gqa_0.5B", smoke=True).model
    before, after = count_parameters(small).total, count_parameters(config.model).total
    assert (config.model.vocab_size, after - before) == (size, (size - 1024) * small.hidden_size)
    assert said is not None
    assert said.startswith(f"model.vocab_size={size} instead of 1024, as the tokenizer {tokenizer} has; ")
    assert f"{after:,} parameters instead of {before:,}, {after / before:.3g} times" in said


def test_a_larger_vocabulary_is_kept(tokenizer: Path) -> None:
    config, said = resolve_run("gqa_0.5B", False, [f"data.tokenizer={tokenizer}"])
    assert (config.model.vocab_size, said) == (151_936, None)


def test_the_vocabulary_of_a_trained_tokenizer_fits() -> None:
    config, said = resolve_run("gqa_0.5B", True, ["data.trained_vocab_size=2000"])
    assert config.model.vocab_size == 2000
    assert said is not None
    assert "as data.trained_vocab_size has" in said
    # It has so many tokens at most: a text may be too short for them, and a model given by hand large enough.
    given, said = resolve_run("gqa_0.5B", True, ["data.trained_vocab_size=2000", "model.vocab_size=1500"])
    assert (given.model.vocab_size, said) == (1500, None)


@pytest.mark.parametrize("key", ["model.vocab_size", "vocab_size"])
def test_too_small_a_vocabulary_is_refused_alike_by_run_plan_and_sweep(key: str, tokenizer: Path) -> None:
    words = [f"data.tokenizer={tokenizer}", f"{key}=1024"]
    with pytest.raises(ConfigError, match="1,024 tokens are fewer than the .* set model.vocab_size="):
        resolve_run("gqa_0.5B", True, words)
    planned = CliRunner().invoke(app, ["plan", "gqa_0.5B", "--smoke", *words])
    assert isinstance(planned.exception, ConfigError)
    with pytest.raises(ConfigError, match="1,024 tokens are fewer than the"):
        build_tasks(Request(only=("gqa_0.5B",), overrides=tuple(words), smoke=True), CPU, None)


CPU = Machine("cpu", "a CPU", ("0",), None, 400_000_000, None)


def test_a_plan_and_the_prepared_text_agree_on_the_vocabulary(tokenizer: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text("".join(f'{{"text": "{number} and {7 * number}"}}\n' for number in range(300)))
    words = [f"data.path={text}", f"data.tokenizer={tokenizer}", f"data.cache={tmp_path / 'cache'}"]
    planned = CliRunner().invoke(app, ["plan", "gqa_0.5B", "--smoke", *words])
    assert planned.exit_code == 0, planned.output
    size = load_tokenizer(tokenizer).vocab_size
    assert f"model.vocab_size={size} instead of 1024" in planned.stdout
    config, _ = resolve_run("gqa_0.5B", True, words)
    assert prepare_corpora(config)[0].vocab_size == config.model.vocab_size == size
    (task,) = build_tasks(Request(only=("gqa_0.5B",), overrides=tuple(words), smoke=True), CPU, None)
    assert task.config is not None
    assert task.config.model == config.model


def test_a_missing_tokenizer_is_named_by_plan(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        resolve_run("gqa_0.5B", True, [f"data.tokenizer={tmp_path / 'gone'}"])


@pytest.mark.parametrize("path", [".", "/", "..", "A" * 300, "a\0b"])
def test_a_text_file_is_not_taken_for_a_pair(path: str) -> None:
    config, said = resolve_run("gqa_0.5B", True, [f"data.path={path}"])
    assert (config.model.vocab_size, said) == (1024, None)
