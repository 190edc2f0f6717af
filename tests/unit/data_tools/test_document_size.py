"""A document that is too large is left out and named, and memory stays bounded whatever a file unpacks to."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.text_files import jsonl

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokenizing.documents import TEXT_KEY, PartReader, Reject
from efficientbench.data_tools.tokenizing.inputs import cut_into_parts
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.data_tools.tokens.manifest import TokenizeRecord, load_record

MB = 1_000_000
LARGEST = MB - len(b'{"id": 1, "text": ""}')

READS = """
import re, sys
from pathlib import Path
from efficientbench.data_tools.tokenizing.documents import PartReader
from efficientbench.data_tools.tokenizing.inputs import cut_into_parts
found = [str(getattr(each, "reason", "text")) for part in cut_into_parts([Path(sys.argv[1])], "text")
         for each in PartReader(part)]
# Not `ru_maxrss`, which this process inherits from the one that started it.
peak_kb = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(",".join(sorted(set(found))), len(found), peak_kb // 1000)
"""


def read(path: Path) -> list[tuple[int, str]]:
    """Line and reason of what is left out, length of what is not, with a limit of 1 MB."""
    found = []
    for part in cut_into_parts([path], TEXT_KEY):
        for document in PartReader(part, TEXT_KEY, 1):
            is_reject = isinstance(document, Reject)
            found.append((document.line, document.reason) if is_reject else (len(document), "text"))
    return found


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz"])
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"])
def test_a_line_that_is_too_long_is_skipped(tmp_path: Path, kind: str, begin: bytes) -> None:
    lengths = [LARGEST + 1, 3, LARGEST, 4 * MB, LARGEST + 3, 5, 2 * MB]
    path = tmp_path / f"data.{kind}"
    content = begin + jsonl(["x" * length for length in lengths]).rstrip()
    path.write_bytes(gzip.compress(content, 1) if kind.endswith("gz") else content)
    long = "too long"
    assert read(path) == [(1, long), (3, "text"), (LARGEST, "text"), (4, long), (5, long), (5, "text"), (7, long)]


def test_a_text_in_parquet_that_is_too_long_is_skipped(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "x" * MB, "ä" * MB, None]}), tmp_path / "data.parquet")
    found = read(tmp_path / "data.parquet")
    assert found == [(1, "text"), (MB, "text"), (3, "too long"), (4, "no text field")]


def test_skipped_documents_are_counted_and_named(tmp_path: Path, tokenizer: Path) -> None:
    source, prefix = tmp_path / "data.jsonl", tmp_path / "tokens"
    source.write_bytes(jsonl(["short", "long " * MB, "short too"]))
    with pytest.raises(DataError, match=r"data\.jsonl:2: the line has more than 1 MB, .*--max-document-mb"):
        tokenize_files([source], prefix, tokenizer, max_document_mb=1)
    corpus = tokenize_files([source], prefix, tokenizer, max_document_mb=1, max_rejects=0.5)
    assert corpus.documents == 2
    assert load_record(corpus.manifest, TokenizeRecord).rejected == {"too long": 1}
    (row,) = map(json.loads, (tmp_path / "tokens.rejects.jsonl").read_text().splitlines())
    assert (row["file"], row["line"], row["reason"]) == (str(source), 2, "too long")
    with pytest.raises(DataError, match="was begun with other --max-document-mb"):
        tokenize_files([source], prefix, tokenizer, max_document_mb=2, max_rejects=0.5)


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet"])
def test_memory_stays_bounded_whatever_a_file_unpacks_to(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"data.{kind}"
    if kind == "parquet":
        # Its dictionary holds the text once.
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1500, pa.int32()), pa.array(["x" * MB]))
        pq.write_table(pa.table({"text": texts}), path, store_schema=False, dictionary_pagesize_limit=4 * MB)
        expected = "text 1500"
    else:
        with gzip.open(path, "wb", 1) as stream:
            for _ in range(400):
                stream.write(b" " * MB)
        expected = "too long 1"
    assert path.stat().st_size < 4 * MB
    done = subprocess.run([sys.executable, "-c", READS, str(path)], capture_output=True, text=True, check=True)
    found, peak_mb = done.stdout.rsplit(maxsplit=1)
    assert found == expected
    assert int(peak_mb) < 450


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "data.parquet")
    with pytest.raises(DataError, match="2 columns are called 'text'"):
        cut_into_parts([tmp_path / "data.parquet"], "text")
