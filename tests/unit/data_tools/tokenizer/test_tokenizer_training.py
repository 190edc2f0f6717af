"""A tokenizer from files: what AutoTokenizer makes of it, the bytes of its tokens, and its compression."""

from __future__ import annotations

import functools
import json
import random
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import regex as re
from hypothesis import given
from hypothesis import strategies as st
from support.data_tools_command import run
from support.text_files import write_kind
from tokenizers import Regex, pre_tokenizers

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokenizer.tokenizer import SPLIT_PATTERN, load_tokenizer, train_tokenizer
from efficientbench.data_tools.tokenizer.tokenizer_training import HELD_OUT_EVERY, describe_training, train_on_files
from efficientbench.data_tools.tokenizing.embedded import embedded_documents

TEXTS = [
    "",
    "plain",
    " two  spaces\n\n\tand\r\nlines",
    "it's I'LL 12345",
    "é e\u0301 ﬁ 漢字 🙂 <|endoftext|>",
    "\x00\ufffd",
]


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return list(embedded_documents())[:1500]


@pytest.fixture(scope="module")
def inputs(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents in parquet, JSONL and compressed JSONL."""
    folder = tmp_path_factory.mktemp("inputs")
    write_kind(folder, "parquet", documents[:500])
    write_kind(folder, "jsonl", [*documents[500:1000], 5])
    write_kind(folder, "jsonl.gz", documents[1000:])
    return folder


@pytest.fixture(scope="module")
def other(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("other") / "small"
    train_tokenizer(documents, 300, folder)
    return str(folder)


def test_training_saves_a_loadable_tokenizer_and_prints_its_compression(
    inputs: Path, other: str, documents: list[str], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    options = ("--vocab-size", "2000", "--output", tmp_path / "bpe", "--compare", other)
    code, out, error = run("train-tokenizer", inputs / "*.parquet", inputs, *options)
    assert (code, error) == (0, "")
    facts = json.loads((tmp_path / "bpe" / "training.json").read_text())
    assert facts["held_out_documents"] == len(documents) // HELD_OUT_EVERY
    assert (facts["documents"] + facts["held_out_documents"], facts["rejected"]) == (len(documents), 1)
    assert "not usable: 1 document" in out
    assert facts["training_bytes"] + facts["held_out_bytes"] == sum(len(document.encode()) for document in documents)
    ours, theirs = facts["compression"]
    assert (ours["vocab_size"], theirs["vocab_size"], theirs["tokenizer"]) == (2000, 300, other)
    assert ours["bytes_per_token"] == facts["held_out_bytes"] / ours["tokens"]
    assert ours["bytes_per_token"] > 1.5 * theirs["bytes_per_token"]
    assert f"{ours['bytes_per_token']:.3f}" in out

    loaded = AutoTokenizer.from_pretrained(str(tmp_path / "bpe"))
    lengths = np.load(tmp_path / "bpe" / "token_bytes.npy")
    assert len(loaded) == len(lengths) == 2000
    assert loaded.eos_token == "<|endoftext|>"
    assert lengths[loaded.eos_token_id] == 0
    own = load_tokenizer(tmp_path / "bpe")
    assert own.token_bytes().tolist() == lengths.tolist()
    for text, ids in zip(TEXTS, own.encode_batch(TEXTS), strict=True):
        assert loaded.decode(ids) == text
        assert lengths[ids].sum() == len(text.encode())


def test_the_same_files_give_the_same_tokenizer(inputs: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        train_on_files([str(inputs)], 600, tmp_path / name, [], "text")
    assert load_tokenizer(tmp_path / "first").fingerprint == load_tokenizer(tmp_path / "second").fingerprint


def test_each_file_contributes_to_a_bounded_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all text can be read, each file gives its share."""
    monkeypatch.setattr("efficientbench.data_tools.tokenizer.tokenizer_training.MAX_TRAINING_CHARACTERS", 20_000)
    chosen = random.Random(0)
    for name in ("x", "y"):
        (tmp_path / f"{name}.txt").write_text(" ".join(name * chosen.randint(1, 9) for _ in range(40_000)))
    result = train_on_files([str(tmp_path)], 270, tmp_path / "bpe", [], "text")
    assert 20_000 <= result.training_bytes < 30_000
    vocabulary = load_tokenizer(tmp_path / "bpe").backend.get_vocab()
    assert {"xx", "yy"} <= vocabulary.keys()


def test_a_single_document_gives_a_smaller_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a few words, a few words")
    result = train_on_files([str(tmp_path / "a.txt")], 5000, tmp_path / "bpe", [], "text")
    assert 257 < result.vocab_size < 300
    lines = "\n".join(describe_training(result))
    assert "fewer than the 5,000 asked for" in lines
    assert "compression: n/a: a single document" in lines


@pytest.mark.parametrize(
    ("content", "size", "compare", "message"),
    [
        ('{"text": " "}\n', 300, [], "no usable document; the first that is not: the text is empty"),
        ('{"text": "a"}\n', 256, [], "at least 257 tokens"),
        ('{"text": "a"}\n', 300, ["/nowhere/at/all"], "tokenizer folder /nowhere/at/all does not exist"),
        (None, 300, [], "no such file"),
    ],
)
def test_mistakes_leave_no_tokenizer(
    content: str | None, size: int, compare: list[str], message: str, tmp_path: Path
) -> None:
    source = tmp_path / "a.jsonl"
    if content is not None:
        source.write_text(content)
    with pytest.raises(DataError, match=message):
        train_on_files([str(source)], size, tmp_path / "bpe", compare, "text")
    assert [path.name for path in tmp_path.iterdir()] == (["a.jsonl"] if content is not None else [])


def test_an_existing_folder_is_not_overwritten(inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(DataError, match="exists already"):
        train_on_files([str(inputs)], 300, tmp_path, [], "text")
    assert (tmp_path / "mine").read_text() == "x"


def test_a_full_disk_is_reported_with_a_remedy(inputs: Path, small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(12)
    command = ("train-tokenizer", inputs, "--vocab-size", "400", "--output", disk / "bpe")
    code, out, error = run(*command)
    assert (code, out) == (2, "")
    assert error.startswith(f"error: no space left in {disk / 'bpe'} (")
    assert error.endswith("free): free some, or choose another folder; the same command trains it again\n")
    assert list(disk.iterdir()) == []
    small_disk(1000)
    assert run(*command)[0] == 0


def test_a_file_size_limit_is_reported_in_training(inputs: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(DataError, match=rf"File too large in {tmp_path / 'bpe'} \(.* free some"):
            train_on_files([str(inputs)], 300, tmp_path / "bpe", [], "text")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@given(text=st.text(st.sampled_from("aZéß漢١2³ \t\n\r\u00a0\u3000'’slLtdv.,!_-🙂e\u0301\x00"), max_size=40))
def test_text_is_split_as_by_gpt4s_tokenizer(text: str) -> None:
    """Compare with tiktoken's own pattern, but for white space at the end, which newer versions of it do not cut."""
    text += "x"
    splitter = pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated")
    assert [piece for piece, _ in splitter.pre_tokenize_str(text)] == re.findall(gpt4_pattern(), text)


@functools.cache
def gpt4_pattern() -> str:
    from tiktoken_ext import openai_public

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(openai_public, "load_tiktoken_bpe", lambda *where, **hashed: {})  # the ranks, from the network
        return openai_public.cl100k_base()["pat_str"]
