"""Documents from JSONL and plain text files, and what is said where a file cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.repository import ROOT
from support.text_files import read_documents

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokenizing.documents import TEXT_DOCUMENT_CHARACTERS, Reject
from efficientbench.data_tools.tokenizing.inputs import find_inputs

SHARED = ROOT.parent / "shared" / "data"
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@same_folder
@given(texts=st.lists(st.text().filter(lambda text: text and not text.isspace()), min_size=1), ascii_only=st.booleans())
def test_any_documents_round_trip_through_jsonl(tmp_path: Path, texts: list[str], ascii_only: bool) -> None:
    lines = (json.dumps({"id": 1, "text": text}, ensure_ascii=ascii_only) for text in texts)
    path = write(tmp_path / "data.jsonl", "\n".join(lines))
    assert read_documents(path) == texts


def test_jsonl_skips_blank_lines_empty_texts_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = write(
        tmp_path / "data.jsonl", b'\xef\xbb\xbf{"text":\r"a"}\r\n\n{"text": " \\n"}\n{"text": ""}\n{"text": "b"}'
    )
    documents = read_documents(path)
    assert [document for document in documents if isinstance(document, str)] == ["a", "b"]
    assert [reject.reason for reject in documents if isinstance(reject, Reject)] == ["empty", "empty"]


@same_folder
@given(
    text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r"), min_size=1),
    repeats=st.integers(1, 3000),
)
def test_reading_plain_text_loses_only_line_ends(tmp_path: Path, text: str, repeats: int) -> None:
    whole = "x" + text * repeats
    documents = read_documents(write(tmp_path / "data.txt", whole))
    # White space alone makes no document; everything that can be seen comes back in order.
    assert "".join("".join(documents).split()) == "".join(whole.split())
    assert max(map(len, documents)) <= 4 * TEXT_DOCUMENT_CHARACTERS


def test_plain_text_is_cut_at_blank_lines(tmp_path: Path) -> None:
    paragraph = "word " * 200 + "end"
    path = write(tmp_path / "data.txt", "\n\n".join([paragraph] * 40))
    documents = read_documents(path)
    assert len(documents) == 8
    assert all(document.startswith("word") and document.endswith("end") for document in documents)


def test_plain_text_without_blank_lines_is_cut_at_line_ends() -> None:
    path = SHARED / "fineweb_edu" / "fineweb_sample.txt"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    lines = path.read_text(encoding="utf-8").splitlines()
    documents = read_documents(path)
    assert len(documents) >= 100, "a 99/1 split by documents needs validation data"
    assert "\n".join(documents).split("\n") == lines


@pytest.mark.parametrize(
    ("name", "content", "line", "detail"),
    [
        ("data.jsonl", '{"text": "a"}\n{"text": "b"', 2, "not JSON at character 13"),
        ("data.jsonl", '{"text": "a"}\n\n{"a": 1, "b": 2}', 3, "the key 'text' is missing; keys there: 'a', 'b'"),
        ("data.jsonl", "{}", 1, "the key 'text' is missing; keys there: none"),
        ("data.jsonl", '["text"]', 1, "a JSON object with the key 'text' is needed, the line holds: array"),
        ("data.jsonl", '{"text": null}', 1, "the key 'text' must hold a string, it holds: null"),
        ("data.jsonl", '{"text": 3}', 1, "the key 'text' must hold a string, it holds: number"),
        ("data.jsonl", '{"text": "\\ud83d"}', 1, "half of a surrogate pair"),
        ("data.jsonl", '{"text": "a", "n": ' + "9" * 5000 + "}", 1, "not JSON that can be read: Exceeds the limit"),
        ("data.jsonl", "[" * 200_000, 1, "not JSON that can be read: it is nested too deeply"),
        ("data.jsonl", b'{"text": "a"}\n{"text": "b\xff"}', 2, "not UTF-8: byte 12 of the line is 0xff"),
        ("data.txt", b"a\nb\n\n\xe9t\xe9", 4, "not UTF-8: byte 1 of the line is 0xe9"),
    ],
)
def test_unusable_documents_are_named(tmp_path: Path, name: str, content: str | bytes, line: int, detail: str) -> None:
    rejects = [each for each in read_documents(write(tmp_path / name, content)) if isinstance(each, Reject)]
    assert [reject.line for reject in rejects] == [line]
    assert rejects[0].detail.startswith(detail)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data.csv", r"data\.csv: unknown kind of file '\.csv'; known: JSONL"),
        ("data", "data: unknown kind of file ''"),
        ("none.jsonl", r"none\.jsonl: no such file"),
        (".", "holds no file of a known kind: JSONL"),
    ],
)
def test_missing_files_and_folders_are_refused_before_reading(tmp_path: Path, name: str, message: str) -> None:
    write(tmp_path / "data.csv", "a,b")
    write(tmp_path / "data", "a")
    with pytest.raises(DataError, match=message):
        find_inputs([tmp_path / name])
