"""`python -m data_tools prepare`: from a hub on this machine to tokens, statistics and a JSONL copy."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from replicas.hub_server import Fault, HubState, hub_server
from support.data_tools_command import finish, start
from support.downloads import SAMPLE, parquet, skip_where_downloads_are_refused
from tokenizers import Tokenizer

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokenizer.tokenizer import train_tokenizer
from efficientbench.data_tools.tokenizing.prepare import copy_as_jsonl
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments

FILES = SAMPLE[:2]
TEXTS = {
    path: [f"document {number} of {path}, an e\u0301, 汉字 and \U0001f600" for number in range(40)] for path in FILES
}


def rows(path: str) -> list[dict[str, object]]:
    return [
        {"text": text, "id": number, "score": None if number == 3 else number / 7}
        for number, text in enumerate(TEXTS[path])
    ]


@pytest.fixture
def hub() -> Iterator[HubState]:
    skip_where_downloads_are_refused()
    with hub_server({path: parquet(pyarrow.Table.from_pylist(rows(path))) for path in FILES}) as state:
        yield state


def started(hub: HubState, tmp_path: Path, folder: Path) -> subprocess.Popen[str]:
    """`prepare` into a folder, with the tokenizer in `tmp_path`."""
    options = ["--output", folder / "data", "--prefix", folder / "tokens" / "all", "--workers", "2", "--to-jsonl"]
    return start(hub.endpoint, "prepare", *options, "--tokenizer", tmp_path / "tokenizer")


def test_a_dataset_becomes_tokens_statistics_and_a_copy(hub: HubState, tmp_path: Path) -> None:
    train_tokenizer([text for texts in TEXTS.values() for text in texts], 300, tmp_path / "tokenizer")
    hub.faults["storage"] = [Fault(break_after=500)]
    code, out, error = finish(started(hub, tmp_path, tmp_path))
    assert code == 0, error
    backend = Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    end = backend.token_to_id("<|endoftext|>")
    expected = [[*backend.encode(text).ids, end] for path in FILES for text in TEXTS[path]]
    documents = IndexedDocuments(tmp_path / "tokens" / "all")
    assert [documents[number].tolist() for number in range(len(documents))] == expected
    assert f"documents           {len(expected)}\n" in out
    assert f"tokens              {sum(map(len, expected)):,} (" in out
    copies = [tmp_path / "data-jsonl" / Path(path).with_suffix(".jsonl") for path in FILES]
    assert [[json.loads(line) for line in copy.read_text().splitlines()] for copy in copies] == [*map(rows, FILES)]

    kept = contents(tmp_path)
    hub.requests.clear()
    code, again, error = finish(started(hub, tmp_path, tmp_path))
    assert (code, again) == (0, out), error
    assert not hub.asked("storage")
    assert contents(tmp_path) == kept


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """All that was made, with the time of its last change."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.suffix in (".parquet", ".jsonl", ".bin", ".idx", ".json")
    }


@pytest.mark.proof
def test_prepare_killed_at_ten_random_moments_ends_with_the_same_bytes(hub: HubState, tmp_path: Path) -> None:
    """SIGKILL hits downloading, tokenizing and copying; a complete attempt starts anew in another folder."""
    hub.files |= {f"sample/10BT/1{number}.parquet": hub.files[FILES[number % 2]] for number in range(7)}
    hub.always["storage"] = Fault(pause_s=0.2)
    train_tokenizer(TEXTS[FILES[0]], 300, tmp_path / "tokenizer")

    def made(folder: Path) -> dict[Path, bytes]:
        assert not [*folder.rglob("*.partial")]
        kinds = (".parquet", ".jsonl", ".bin", ".idx")
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.suffix in kinds}

    begin_s = time.monotonic()
    assert finish(started(hub, tmp_path, tmp_path / "undisturbed"))[0] == 0
    longest_s = time.monotonic() - begin_s
    expected = made(tmp_path / "undisturbed")
    assert len(expected) == 2 * 9 + 3  # files, copies, the pair, and the list of rejects
    moments, kills, folder = random.Random(0), 0, tmp_path / "0"
    while kills < 10:
        process = started(hub, tmp_path, folder)
        try:
            process.wait(moments.uniform(0.2, 1) * longest_s)
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        else:
            assert process.returncode == 0
            assert made(folder) == expected
            folder = tmp_path / str(kills)
        process.communicate()
    assert finish(started(hub, tmp_path, folder))[0] == 0
    assert made(folder) == expected


def test_no_copy_is_made_without_the_option(hub: HubState, tmp_path: Path) -> None:
    train_tokenizer(TEXTS[FILES[0]], 300, tmp_path / "tokenizer")
    options = ["--output", tmp_path / "data", "--prefix", tmp_path / "one", "--num-files", "1", "--workers", "1"]
    code, _, error = finish(start(hub.endpoint, "prepare", *options, "--tokenizer", tmp_path / "tokenizer"))
    assert code == 0, error
    assert len(IndexedDocuments(tmp_path / "one")) == 40
    assert not (tmp_path / "data-jsonl").exists()


def test_a_copy_is_rebuilt_after_its_source_changed(tmp_path: Path) -> None:
    source, copy = tmp_path / "a.parquet", tmp_path / "copies" / "a.jsonl"
    written = datetime(2024, 5, 1, 12)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["first"], "score": [float("nan")], "date": [written]}), source)
    assert copy_as_jsonl(source, copy)
    assert json.loads(copy.read_text()) == {"text": "first", "score": None, "date": "2024-05-01 12:00:00"}
    assert not copy_as_jsonl(source, copy)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["second"]}), source)
    assert copy_as_jsonl(source, copy)
    assert json.loads(copy.read_text()) == {"text": "second"}


def test_a_damaged_source_leaves_no_copy(tmp_path: Path) -> None:
    source, copy = tmp_path / "a.parquet", tmp_path / "a.jsonl"
    table = pyarrow.table({"text": ["a text that is long enough"] * 1000})
    pyarrow.parquet.write_table(table, source, compression="none")
    content = bytearray(source.read_bytes())
    content[4:200] = b"\xff" * 196
    source.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as parquet"):
        copy_as_jsonl(source, copy)
    assert not copy.exists()
