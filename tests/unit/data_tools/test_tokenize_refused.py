"""Files to a tokenized pair: documents that are skipped, and files that are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.text_files import TEXTS, decoded, jsonl, left_in, write_kind

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokenizer.tokenizer import train_tokenizer
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.data_tools.tokens.indexed import bin_path
from efficientbench.data_tools.tokens.manifest import TokenizeRecord, load_record, manifest_path

pytestmark = pytest.mark.usefixtures("small_parts")

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


def test_unusable_documents_are_listed_and_counted(tmp_path: Path, tokenizer: Path) -> None:
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
    record = load_record(corpus.manifest, TokenizeRecord)
    assert record.rejected == {"bad JSON": 3, "no text field": 3, "empty": 1, "invalid UTF-8": 2}
    assert record.inputs[0].rejected == 9


def test_too_many_unusable_documents_fail_unless_allowed(tmp_path: Path, tokenizer: Path) -> None:
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


def test_unusable_parquet_is_named(tmp_path: Path, tokenizer: Path) -> None:
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


def test_a_damaged_parquet_file_is_named(tmp_path: Path, tokenizer: Path) -> None:
    path = write_kind(tmp_path, "parquet", TEXTS)
    content = bytearray(path.read_bytes())
    content[100:4000] = bytes(3900)
    path.write_bytes(content)
    with pytest.raises(DataError, match="data.parquet cannot be read as parquet"):
        tokenize_files([path], tmp_path / "tokens", tokenizer)


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst"])
@pytest.mark.parametrize("damage", ["cut short", "not compressed"])
def test_damaged_compressed_files_are_refused(tmp_path: Path, tokenizer: Path, kind: str, damage: str) -> None:
    source = write_kind(tmp_path, kind, TEXTS)
    source.write_bytes(source.read_bytes()[:-20] if damage == "cut short" else jsonl(TEXTS))
    with pytest.raises(DataError, match=r"data\.jsonl\.\w+ is damaged or cut short"):
        tokenize_files([source], tmp_path / "tokens", tokenizer)
    assert not bin_path(tmp_path / "tokens").exists()


def test_an_empty_compressed_file_is_refused_as_truncated(
    compressed: list[Path], tmp_path: Path, tokenizer: Path
) -> None:
    compressed[1].write_bytes(b"")
    with pytest.raises(DataError, match="b.jsonl.gz is damaged or cut short: it is empty"):
        tokenize_files(compressed, tmp_path / "tokens", tokenizer)


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


class InterruptedHereError(Exception):
    pass


def interrupted_after_a_part(files: list[Path], prefix: Path, tokenizer: Path) -> None:
    def stop(done: int, parts: int) -> None:
        raise InterruptedHereError

    with pytest.raises(InterruptedHereError):
        tokenize_files(files, prefix, tokenizer, on_part=stop)


def test_the_same_files_in_another_order_are_another_corpus(
    compressed: list[Path], tmp_path: Path, tokenizer: Path
) -> None:
    first, second, third = compressed
    interrupted_after_a_part(compressed, tmp_path / "half", tokenizer)
    with pytest.raises(DataError, match="was begun with other inputs"):
        tokenize_files([second, first, third], tmp_path / "half", tokenizer)
    tokenize_files(compressed, tmp_path / "whole", tokenizer)
    with pytest.raises(DataError, match="was begun with other inputs"):
        tokenize_files([second, first, third], tmp_path / "whole", tokenizer)


def test_a_half_saved_tokenizer_is_saved_again(compressed: list[Path], tmp_path: Path, tokenizer: Path) -> None:
    interrupted_after_a_part(compressed, tmp_path / "half", tokenizer)
    saved = tmp_path / "half.parts" / "tokenizer"
    saved.rename(saved.with_name("tokenizer.partial"))
    assert tokenize_files(compressed, tmp_path / "half", tokenizer).documents == 9


def test_a_finished_pair_is_not_rewritten(tmp_path: Path, tokenizer: Path) -> None:
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
    with pytest.raises(DataError, match=r"tokens\.bin exists already, and this command did not make it"):
        tokenize_files([source], prefix, tokenizer)


def test_a_finished_pair_is_refused_if_its_rejects_exceed_the_limit(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(jsonl(["good"]) + b"{broken\n")
    tokenize_files([path], tmp_path / "tokens", tokenizer, max_rejects=0.9)
    with pytest.raises(DataError, match="1 of 2 documents skipped, and now at most 1.00%"):
        tokenize_files([path], tmp_path / "tokens", tokenizer, max_rejects=0.01)


def test_a_folder_as_output_prefix_is_refused(compressed: list[Path], tokenizer: Path) -> None:
    with pytest.raises(DataError, match="is a folder: give the path of the pair"):
        tokenize_files(compressed, Path(), tokenizer)
