"""Files to a tokenized pair: every kind of input, any number of workers, what is left out, and what is refused."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_tools import inputs
from data_tools.documents import read_documents
from data_tools.errors import DataError
from data_tools.indexed import bin_path, idx_path
from data_tools.manifest import load_corpus, load_record, manifest_path
from data_tools.reading import IndexedDocuments
from data_tools.tokenize import tokenize_files
from data_tools.tokenizer import load_tokenizer, train_tokenizer

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [f"Document {number}: naïve caf\u00e9 {'some text and more ' * (number % 40)}" for number in range(600)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer") / "bpe"
    train_tokenizer(TEXTS, 400, folder)
    return folder


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small files have many parts."""
    monkeypatch.setattr(inputs, "PART_BYTES", 20_000)


def jsonl(texts: list[str]) -> bytes:
    return "".join(json.dumps({"id": 1, "text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


def decoded(prefix: Path, tokenizer: Path) -> list[str]:
    backend = load_tokenizer(tokenizer).backend
    documents = IndexedDocuments(prefix)
    return [backend.decode(documents[i][:-1].tolist(), skip_special_tokens=False) for i in range(len(documents))]


def pair(prefix: Path) -> tuple[bytes, bytes]:
    return bin_path(prefix).read_bytes(), idx_path(prefix).read_bytes()


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def write_kind(folder: Path, kind: str, texts: list[str]) -> Path:
    path = folder / f"data.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path, row_group_size=50)
    elif kind.endswith(".gz"):
        path.write_bytes(gzip.compress(jsonl(texts)))
    elif kind.endswith(".zst"):
        half = len(texts) // 2  # two frames, as tools that compress in pieces write them
        path.write_bytes(zstandard.compress(jsonl(texts[:half])) + zstandard.compress(jsonl(texts[half:])))
    else:
        path.write_bytes(jsonl(texts))
    return path


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
    names = {"lock", "bin", "idx", "manifest.json", "rejects.jsonl", "tokenizer", "token_bytes.npy"}
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
    record = load_record(corpus.manifest)
    assert record is not None
    assert [Path(item.path).name for item in record.inputs] == ["3.jsonl", "1.jsonl", "2.jsonl"]
    for wrong, message in ((tmp_path / "x*.jsonl", "no file matches"), (tmp_path / "a/notes.md", "unknown kind of")):
        with pytest.raises(DataError, match=message):
            tokenize_files([wrong], tmp_path / "other", tokenizer)
    assert not bin_path(tmp_path / "other").exists()


def test_plain_text_is_read_the_same_in_parts(tmp_path: Path, tokenizer: Path) -> None:
    paragraph = "Ünïcode words, " * 30
    source = tmp_path / "book.txt"
    source.write_text("\n\n".join(f"{number} {paragraph}" for number in range(300)))
    corpus = tokenize_files([source], tmp_path / "tokens", tokenizer, workers=2)
    documents = decoded(corpus.prefix, tokenizer)
    assert len(inputs.cut_into_parts([source], "text")) > 5
    assert "".join("".join(documents).split()) == "".join(source.read_text().split())
    assert max(map(len, documents)) < 3 * 4096


BAD_LINES = [
    (b"{broken", "bad JSON"),
    (b'"a string"', "bad JSON"),
    (b'{"txt": "no key"}', "no text field"),
    (b'{"text": 3}', "no text field"),
    (b'{"text": null}', "no text field"),
    (b'{"text": " \\n"}', "empty"),
    (b'{"text": "\xff"}', "invalid UTF-8"),
    (b'{"text": "\\ud800"}', "invalid UTF-8"),
]


def test_what_is_unusable_is_listed_and_counted(tmp_path: Path, tokenizer: Path) -> None:
    good = jsonl(TEXTS).splitlines(keepends=True)
    lines = [*good[:500], *(line + b"\n" for line, _ in BAD_LINES), b"\n", *good[500:], b'{"text": "cut o']
    source = tmp_path / "data.jsonl"
    source.write_bytes(b"".join(lines))
    corpus = tokenize_files([source], tmp_path / "tokens", tokenizer, max_rejects=0.02)
    assert decoded(corpus.prefix, tokenizer) == TEXTS
    rows = [json.loads(line) for line in (tmp_path / "tokens.rejects.jsonl").read_text().splitlines()]
    expected = [(501 + index, reason) for index, (_, reason) in enumerate(BAD_LINES)] + [(len(lines), "bad JSON")]
    assert [(row["line"], row["reason"]) for row in rows] == expected
    assert {row["file"] for row in rows} == {str(source)}
    record = load_record(corpus.manifest)
    assert record is not None
    assert record.rejected == {"bad JSON": 3, "no text field": 3, "empty": 1, "invalid UTF-8": 2}
    assert record.inputs[0].rejected == 9


def test_too_much_that_is_unusable_fails_and_can_be_allowed(tmp_path: Path, tokenizer: Path) -> None:
    source = tmp_path / "data.jsonl"
    source.write_bytes(jsonl(TEXTS[:97]) + b"{broken\n" * 3)
    with pytest.raises(
        DataError, match=r"3 of 100 documents .* at most 2\.00% .*data\.jsonl:98: not JSON at character"
    ):
        tokenize_files([source], tmp_path / "tokens", tokenizer, max_rejects=0.02)
    assert left_in(tmp_path) == {"data.jsonl", "tokens.lock", "tokens.parts", "tokens.rejects.jsonl"}
    assert tokenize_files([source], tmp_path / "tokens", tokenizer, max_rejects=0.03).documents == 97
    source.write_bytes(b"{}\n")
    with pytest.raises(DataError, match=r"holds no usable document.*data\.jsonl:1: the key 'text' is missing"):
        tokenize_files([source], tmp_path / "none", tokenizer, max_rejects=1)


def test_parquet_that_is_unusable_is_named(tmp_path: Path, tokenizer: Path) -> None:
    source = tmp_path / "data.parquet"
    values = pa.array([b"good", b"\xff\xfe", None, b"", b"also good"], pa.binary())
    pq.write_table(pa.table({"text": values}), source)
    corpus = tokenize_files([source], tmp_path / "tokens", tokenizer, max_rejects=0.6)
    assert decoded(corpus.prefix, tokenizer) == ["good", "also good"]
    rows = [json.loads(line) for line in (tmp_path / "tokens.rejects.jsonl").read_text().splitlines()]
    assert [(row["line"], row["reason"]) for row in rows] == [(2, "invalid UTF-8"), (3, "no text field"), (4, "empty")]
    with pytest.raises(DataError, match=r"data\.parquet: no column 'body'; columns there: 'text'"):
        tokenize_files([source], tmp_path / "other", tokenizer, text_key="body")
    pq.write_table(pa.table({"text": [1, 2]}), source)
    with pytest.raises(DataError, match="the column 'text' must hold strings, it holds: int64"):
        tokenize_files([source], tmp_path / "other", tokenizer)
    source.write_bytes(source.read_bytes()[:-6])
    with pytest.raises(DataError, match=r"data\.parquet cannot be read as parquet"):
        tokenize_files([source], tmp_path / "other", tokenizer)


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst"])
@pytest.mark.parametrize("damage", ["cut short", "not compressed"])
def test_damaged_compressed_files_are_refused(tmp_path: Path, tokenizer: Path, kind: str, damage: str) -> None:
    source = write_kind(tmp_path, kind, TEXTS)
    source.write_bytes(source.read_bytes()[:-20] if damage == "cut short" else jsonl(TEXTS))
    with pytest.raises(DataError, match=r"data\.jsonl\.\w+ is damaged or cut short"):
        tokenize_files([source], tmp_path / "tokens", tokenizer)
    assert not bin_path(tmp_path / "tokens").exists()


def test_an_input_that_changes_between_runs_is_named(tmp_path: Path, tokenizer: Path) -> None:
    source = tmp_path / "data.jsonl"
    source.write_bytes(jsonl(TEXTS) + b"{broken\n")
    prefix = tmp_path / "tokens"
    with pytest.raises(DataError, match="not usable"):  # stops before the pair is written
        tokenize_files([source], prefix, tokenizer, max_rejects=0)
    stat = source.stat()
    source.write_bytes(jsonl(TEXTS[1:]) + b" " * (len(jsonl(TEXTS[:1]))) + b"{broken\n")
    assert source.stat().st_size == stat.st_size
    with pytest.raises(DataError, match=r"data\.jsonl changed since .*tokens was begun: put the old file back, or del"):
        tokenize_files([source], prefix, tokenizer)
    assert not bin_path(prefix).exists()
    shutil.rmtree(tmp_path / "tokens.parts")
    assert tokenize_files([source], prefix, tokenizer).documents == len(TEXTS) - 1
    source.write_bytes(jsonl(TEXTS))
    with pytest.raises(DataError, match=r"data\.jsonl changed since .*: put the old file back, or choose another name"):
        tokenize_files([source], prefix, tokenizer)


def test_an_input_that_changes_during_a_run_is_named(tmp_path: Path, tokenizer: Path) -> None:
    source = write_kind(tmp_path, "jsonl", TEXTS)

    def grow(done: int, parts: int) -> None:
        with source.open("ab") as stream:
            stream.write(jsonl(["one more"]))

    with pytest.raises(DataError, match=r"data\.jsonl changed while it was read"):
        tokenize_files([source], tmp_path / "tokens", tokenizer, on_part=grow)
    assert not bin_path(tmp_path / "tokens").exists()


def test_what_is_finished_is_left_alone(tmp_path: Path, tokenizer: Path) -> None:
    source = write_kind(tmp_path, "jsonl", TEXTS)
    prefix = tmp_path / "tokens"
    corpus = tokenize_files([source], prefix, tokenizer)
    written = bin_path(prefix).stat().st_mtime_ns
    assert tokenize_files([source], prefix, tokenizer) == corpus
    assert bin_path(prefix).stat().st_mtime_ns == written
    train_tokenizer(TEXTS, 300, tmp_path / "other")
    with pytest.raises(DataError, match="begun with other tokenizer"):
        tokenize_files([source], prefix, tmp_path / "other")
    manifest_path(prefix).unlink()
    with pytest.raises(DataError, match=r"tokens\.bin is there already, and was not made here"):
        tokenize_files([source], prefix, tokenizer)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(texts=st.lists(st.text().filter(lambda text: text and not text.isspace()), min_size=1))
def test_any_unicode_comes_back(tmp_path: Path, tokenizer: Path, texts: list[str]) -> None:
    """This tokenizer has no normalizer, so documents come back as they were."""
    for path in tmp_path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    source = tmp_path / "data.jsonl"
    source.write_bytes(jsonl(texts))
    corpus = tokenize_files([source], tmp_path / "tokens", tokenizer)
    assert list(read_documents(source)) == texts
    assert decoded(corpus.prefix, tokenizer) == texts
    assert corpus.token_bytes_path is not None
    lengths = np.load(corpus.token_bytes_path)
    tokens = np.fromfile(bin_path(corpus.prefix), np.uint16)
    assert lengths[tokens].sum() == corpus.utf8_bytes == sum(len(text.encode()) for text in texts)


def test_megatron_reads_the_pair(tmp_path: Path, tokenizer: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    corpus = tokenize_files([write_kind(tmp_path, "jsonl", TEXTS)], tmp_path / "tokens", tokenizer, workers=2)
    dataset = IndexedDataset(str(corpus.prefix))
    backend = load_tokenizer(tokenizer).backend
    assert [backend.decode(dataset[i][:-1], skip_special_tokens=False) for i in range(len(dataset))] == TEXTS
    assert dataset.document_indices.tolist() == list(range(len(TEXTS) + 1))


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "data_tools", *map(str, words)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_command_line(tmp_path: Path, tokenizer: Path) -> None:
    source = write_kind(tmp_path, "jsonl", [*TEXTS, "say <|endoftext|> twice: <|endoftext|>"])
    done = command("tokenize", source, "--output", tmp_path / "tokens", "--tokenizer", tokenizer, "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert f"{len(TEXTS) + 1} documents of " in done.stdout
    assert "kept as text: 2 x <|endoftext|>" in done.stdout
    assert command("verify", tmp_path / "tokens.bin").returncode == 0
    done = command("tokenize", tmp_path / "none.jsonl", "--output", tmp_path / "other", "--tokenizer", tokenizer)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {tmp_path}/none.jsonl: no such file\n"


@pytest.fixture
def compressed(tmp_path: Path) -> list[Path]:
    """Three files of which each is one part."""
    paths = [tmp_path / f"{name}.jsonl.gz" for name in "abc"]
    for path in paths:
        path.write_bytes(gzip.compress(jsonl([f"from {path.name}"] * 3)))
    return paths


class InterruptedHereError(Exception):
    pass


def interrupted_after_a_part(files: list[Path], prefix: Path, tokenizer: Path) -> None:
    def stop(done: int, parts: int) -> None:
        raise InterruptedHereError

    with pytest.raises(InterruptedHereError):
        tokenize_files(files, prefix, tokenizer, on_part=stop)


def test_files_in_another_order_are_another_corpus(compressed: list[Path], tmp_path: Path, tokenizer: Path) -> None:
    first, second, third = compressed
    interrupted_after_a_part(compressed, tmp_path / "half", tokenizer)
    with pytest.raises(DataError, match="was begun with other inputs"):
        tokenize_files([second, first, third], tmp_path / "half", tokenizer)
    tokenize_files(compressed, tmp_path / "whole", tokenizer)
    with pytest.raises(DataError, match="was begun with other inputs"):
        tokenize_files([second, first, third], tmp_path / "whole", tokenizer)


def test_a_tokenizer_that_was_half_saved_is_saved_anew(compressed: list[Path], tmp_path: Path, tokenizer: Path) -> None:
    interrupted_after_a_part(compressed, tmp_path / "half", tokenizer)
    saved = tmp_path / "half.parts" / "tokenizer"
    saved.rename(saved.with_name("tokenizer.partial"))
    assert tokenize_files(compressed, tmp_path / "half", tokenizer).documents == 9


def test_one_file_by_two_names_is_read_once(
    compressed: list[Path], tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tokenize_files(["a.jsonl.gz", compressed[0]], tmp_path / "once", tokenizer).documents == 3


@pytest.mark.usefixtures("compressed")
def test_what_is_made_inside_the_input_folder_is_no_input(tmp_path: Path, tokenizer: Path) -> None:
    first = tokenize_files([tmp_path], tmp_path / "tokens", tokenizer)
    assert tokenize_files([tmp_path], tmp_path / "tokens", tokenizer) == first
    assert tokenize_files([tmp_path], tmp_path / "again", tokenizer).documents == 9


def test_a_damaged_parquet_file_is_named(tmp_path: Path, tokenizer: Path) -> None:
    path = write_kind(tmp_path, "parquet", TEXTS)
    content = bytearray(path.read_bytes())
    content[100:4000] = bytes(3900)
    path.write_bytes(content)
    with pytest.raises(DataError, match="data.parquet cannot be read as parquet"):
        tokenize_files([path], tmp_path / "tokens", tokenizer)


def test_an_empty_compressed_file_is_cut_short(compressed: list[Path], tmp_path: Path, tokenizer: Path) -> None:
    compressed[1].write_bytes(b"")
    with pytest.raises(DataError, match="b.jsonl.gz is damaged or cut short: it is empty"):
        tokenize_files(compressed, tmp_path / "tokens", tokenizer)


def test_a_finished_pair_answers_for_its_rejects_too(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(jsonl(["good"]) + b"{broken\n")
    tokenize_files([path], tmp_path / "tokens", tokenizer, max_rejects=0.9)
    with pytest.raises(DataError, match="1 of 2 documents left out, and now at most 1.00%"):
        tokenize_files([path], tmp_path / "tokens", tokenizer, max_rejects=0.01)


def test_a_folder_is_no_prefix(compressed: list[Path], tokenizer: Path) -> None:
    with pytest.raises(DataError, match="is a folder: give the path of the pair"):
        tokenize_files(compressed, Path(), tokenizer)
