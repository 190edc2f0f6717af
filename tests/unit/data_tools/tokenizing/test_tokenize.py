"""Files to a tokenized pair: every kind of input, in any order, by any number of workers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.data_tools_command import run
from support.text_files import TEXTS, decoded, jsonl, left_in, pair, read_documents, write_kind

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokenizing import inputs
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.data_tools.tokens.indexed import bin_path
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.manifest import TokenizeRecord, load_corpus, load_record, manifest_path

pytestmark = pytest.mark.usefixtures("small_parts")


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_every_kind_of_file_gives_the_same_pair(tmp_path: Path, tokenizer: Path, kind: str) -> None:
    corpus = tokenize_files([write_kind(tmp_path, kind, TEXTS)], tmp_path / "out" / "tokens", tokenizer)
    assert decoded(corpus.prefix, tokenizer) == TEXTS
    assert corpus.utf8_bytes == sum(len(text.encode()) for text in TEXTS)
    assert IndexedDocuments(corpus.prefix)[7][-1] == corpus.eod_id
    assert corpus == load_corpus(manifest_path(corpus.prefix))
    (tmp_path / "plain").mkdir()
    plain = tokenize_files([write_kind(tmp_path / "plain", "jsonl", TEXTS)], tmp_path / "plain" / "tokens", tokenizer)
    assert pair(corpus.prefix) == pair(plain.prefix)
    names = {"lock", "bin", "idx", "hashes", "manifest.json", "rejects.jsonl", "tokenizer", "token_bytes.npy"}
    assert left_in(tmp_path / "out") == {f"tokens.{name}" for name in names}


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path, tokenizer: Path) -> None:
    source = write_kind(tmp_path, "jsonl", TEXTS)
    assert len(inputs.cut_into_parts([source], "text")) > 5
    corpora = [tokenize_files([source], tmp_path / f"{count}/t", tokenizer, workers=count) for count in (1, 2, 3)]
    assert decoded(corpora[0].prefix, tokenizer) == TEXTS
    contents = [
        {path.name: path.read_bytes() for path in sorted(corpus.prefix.parent.iterdir()) if path.is_file()}
        for corpus in corpora
    ]
    assert contents[0] == contents[1] == contents[2]


def test_folders_globs_and_several_inputs_keep_their_order(tmp_path: Path, tokenizer: Path) -> None:
    for name, text in (
        ("a/1.jsonl", "one"),
        ("a/b/2.jsonl", "two"),
        ("a/notes.md", "not this"),
        ("c/3.jsonl", "three"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(jsonl([text]))
    given_inputs = [tmp_path / "c" / "*.jsonl", tmp_path / "a", tmp_path / "a" / "1.jsonl"]
    corpus = tokenize_files(given_inputs, tmp_path / "tokens", tokenizer)
    assert decoded(corpus.prefix, tokenizer) == ["three", "one", "two"]
    record = load_record(corpus.manifest, TokenizeRecord)
    assert [Path(item.path).name for item in record.inputs] == ["3.jsonl", "1.jsonl", "2.jsonl"]
    for wrong, message in ((tmp_path / "x*.jsonl", "no file matches"), (tmp_path / "a/notes.md", "unknown kind of")):
        with pytest.raises(DataError, match=message):
            tokenize_files([wrong], tmp_path / "other", tokenizer)
    assert not bin_path(tmp_path / "other").exists()


def test_plain_text_read_in_parts_gives_the_same_documents(tmp_path: Path, tokenizer: Path) -> None:
    paragraph = "Ünïcode words, " * 30
    source = tmp_path / "book.txt"
    source.write_text("\n\n".join(f"{number} {paragraph}" for number in range(300)))
    corpus = tokenize_files([source], tmp_path / "tokens", tokenizer, workers=2)
    documents = decoded(corpus.prefix, tokenizer)
    assert len(inputs.cut_into_parts([source], "text")) > 5
    assert "".join("".join(documents).split()) == "".join(source.read_text().split())
    assert max(map(len, documents)) < 3 * 4096


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(texts=st.lists(st.text().filter(lambda text: text and not text.isspace()), min_size=1))
def test_any_unicode_round_trips(tmp_path: Path, tokenizer: Path, texts: list[str]) -> None:
    """This tokenizer has no normalizer, so documents come back as they were."""
    for path in tmp_path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    source = tmp_path / "data.jsonl"
    source.write_bytes(jsonl(texts))
    corpus = tokenize_files([source], tmp_path / "tokens", tokenizer)
    assert read_documents(source) == texts
    assert decoded(corpus.prefix, tokenizer) == texts
    lengths = np.load(corpus.token_bytes_path)
    tokens = np.fromfile(bin_path(corpus.prefix), np.uint16)
    assert lengths[tokens].sum() == corpus.utf8_bytes == sum(len(text.encode()) for text in texts)


def test_the_tokenize_command_prints_its_result(tmp_path: Path, tokenizer: Path) -> None:
    source = write_kind(tmp_path, "jsonl", [*TEXTS, "say <|endoftext|> twice: <|endoftext|>"])
    options = ("--tokenizer", tokenizer, "--workers", "2")
    code, out, error = run("tokenize", source, "--output", tmp_path / "tokens", *options)
    assert code == 0, error
    assert f"{len(TEXTS) + 1} documents of " in out
    assert "kept as text: 2 x <|endoftext|>" in out
    assert run("verify", tmp_path / "tokens.bin")[0] == 0
    failed = run("tokenize", tmp_path / "none.jsonl", "--output", tmp_path / "other", *options)
    assert failed == (2, "", f"error: {tmp_path}/none.jsonl: no such file\n")


def test_one_file_by_two_names_is_read_once(
    compressed: list[Path], tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tokenize_files(["a.jsonl.gz", compressed[0]], tmp_path / "once", tokenizer).documents == 3


@pytest.mark.usefixtures("compressed")
def test_outputs_inside_the_input_folder_are_not_read_as_input(tmp_path: Path, tokenizer: Path) -> None:
    first = tokenize_files([tmp_path], tmp_path / "tokens", tokenizer)
    assert tokenize_files([tmp_path], tmp_path / "tokens", tokenizer) == first
    assert tokenize_files([tmp_path], tmp_path / "again", tokenizer).documents == 9
