"""Texts as files of every kind, and the pairs that are made of them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
from efficientbench.data_tools.tokenizing.documents import TEXT_KEY, PartReader, Reject
from efficientbench.data_tools.tokenizing.inputs import cut_into_parts, find_inputs
from efficientbench.data_tools.tokens.indexed import bin_path, idx_path
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments

TEXTS = [f"Document {number}: naïve caf\u00e9 {'some text and more ' * (number % 40)}" for number in range(600)]


def jsonl(texts: list[str]) -> bytes:
    """Rows of JSON, one a text."""
    return "".join(json.dumps({"id": 1, "text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


def decoded(prefix: Path, tokenizer: Path) -> list[str]:
    """The documents of a pair as text."""
    backend = load_tokenizer(tokenizer).backend
    documents = IndexedDocuments(prefix)
    return [backend.decode(documents[i][:-1].tolist(), skip_special_tokens=False) for i in range(len(documents))]


def pair(prefix: Path) -> tuple[bytes, bytes]:
    """Both files of a pair."""
    return bin_path(prefix).read_bytes(), idx_path(prefix).read_bytes()


def left_in(folder: Path) -> set[str]:
    """The names of all that a folder holds."""
    return {path.name for path in folder.iterdir()}


def write_kind(folder: Path, kind: str, texts: list[str]) -> Path:
    """`data.<kind>` with these texts."""
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


def read_documents(path: Path) -> list[str | Reject]:
    """The documents of a file, and what stands for those that are not usable, with lines of the whole file."""
    documents: list[str | Reject] = []
    lines = 0
    for part in cut_into_parts(find_inputs([path]), TEXT_KEY):
        reader = PartReader(part)
        for document in reader:
            if isinstance(document, Reject):
                document = replace(document, line=lines + document.line)
            documents.append(document)
        lines += reader.lines
    return documents
