"""Damage of every kind, named with the byte where it is; and pairs that others wrote."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.pairs import overwrite
from support.text_files import write_kind

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokenizer.tokenizer import train_tokenizer
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.data_tools.tokens.indexed import IndexedHeader, bin_path, idx_path
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.inspection import verify_pair
from efficientbench.data_tools.tokens.manifest import load_corpus, manifest_path

DOCUMENTS = 1000
WORDS = "Words that a small tokenizer cuts into few. "
# What DataTrove 0.10.1 writes for the documents [5, 6, 7, 0] and [1, 0].
DATATROVE = {
    "uint16": (
        "050006000700000001000000",
        "4d4d49444944580000010000000000000008020000000000000003000000000000000400000002000000000000000000000008000000"
        "00000000000000000000000001000000000000000200000000000000",
    ),
    "int32": (
        "050000000600000007000000000000000100000000000000",
        "4d4d49444944580000010000000000000004020000000000000003000000000000000400000002000000000000000000000010000000"
        "00000000000000000000000001000000000000000200000000000000",
    ),
}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Bytes of the `.idx`: header 34, lengths to 4,034, pointers to 12,034, document indices to 20,042."""
    train_tokenizer([WORDS * 9], 300, tmp_path / "bpe")
    source = write_kind(tmp_path, "jsonl", [f"{n} {WORDS * (1 + n % 130)}" for n in range(DOCUMENTS)])
    return tokenize_files([source], tmp_path / "tokens", tmp_path / "bpe").prefix


def change_two_lengths(prefix: Path) -> None:
    """Such that they fit the pointers of all others."""
    lengths = np.memmap(idx_path(prefix), np.int32, "r+", offset=34, shape=(DOCUMENTS,))
    lengths[10] += 1
    lengths[11] -= 1


def exchange_the_manifest(prefix: Path) -> None:
    content = json.loads(manifest_path(prefix).read_text())
    manifest_path(prefix).write_text(json.dumps({**content, "tokens": content["tokens"] - 1}))


def double_the_lengths_of_tokens(prefix: Path) -> None:
    path = load_corpus(manifest_path(prefix)).token_bytes_path
    np.save(path, np.load(path) * 2)


def change_the_tokenizer(prefix: Path) -> None:
    path = load_corpus(manifest_path(prefix)).tokenizer_folder / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b"us", b"su"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (double_the_lengths_of_tokens, r"tokens\.token_bytes\.npy: bytes 0 to 1,\d+: not what was written there"),
        (change_the_tokenizer, r"tokens\.tokenizer/tokenizer\.json: bytes 0 to [\d,]+: not what was written there"),
        (
            overwrite(idx_path, 4034 + 8 * 3, struct.pack("<q", 4)),
            r"tokens\.idx: byte 4,058: sequence 3: pointer 4, but the sequence before it ends at byte \d",
        ),
        (  # in the second block of bytes, to another token of the vocabulary
            overwrite(bin_path, (1 << 20) + 600, struct.pack("<H", 290)),
            r"tokens\.bin: bytes 1,048,576 to 1,\d+,\d+: not what was written there",
        ),
        (
            overwrite(bin_path, 1000, struct.pack("<H", 300)),
            r"tokens\.bin: byte 1,000: token 300 lies outside the tokenizer's vocabulary of 29",
        ),
        (
            overwrite(idx_path, 12034 + 8 * 5, struct.pack("<q", 4)),
            r"tokens\.idx: bytes 0 to 20,042: not what was written there",
        ),
        (change_two_lengths, r"tokens\.idx: byte 4,122: sequence 11: pointer [\d,]+, but the sequence before it ends"),
        (exchange_the_manifest, r"tokens holds 1,000 documents of [\d,]+ tokens, but .*manifest\.json says 1,000 of"),
    ],
)
def test_damage_of_every_kind_is_named_with_its_byte(
    prefix: Path, damage: Callable[[Path], None], message: str
) -> None:
    header, corpus = verify_pair(prefix)
    assert header.documents == corpus.documents == DOCUMENTS
    damage(prefix)
    with pytest.raises(DataError, match=message):
        verify_pair(prefix)


def test_a_changed_bit_in_any_byte_is_detected(prefix: Path) -> None:
    """A changed bit anywhere in either file is detected, and the named range of bytes holds it."""
    generator = np.random.default_rng(0)
    for path in (bin_path(prefix), idx_path(prefix)):
        content = path.read_bytes()
        for at in [*generator.integers(0, len(content), 12).tolist(), 0, len(content) - 1]:
            changed = bytes([content[at] ^ (1 << int(generator.integers(8)))])
            path.write_bytes(content[:at] + changed + content[at + 1 :])
            with pytest.raises(DataError) as caught:
                verify_pair(prefix)
            assert str(path) in str(caught.value) or path == idx_path(prefix), (at, str(caught.value))
            named = re.search(r"bytes ([\d,]+) to ([\d,]+): not what", str(caught.value))
            if named is not None:
                begin, end = (int(each.replace(",", "")) for each in named.groups())
                assert begin <= at < end
        path.write_bytes(content)
    verify_pair(prefix)


@pytest.mark.parametrize("dtype", DATATROVE)
def test_pairs_written_by_datatrove_are_read(tmp_path: Path, dtype: str) -> None:
    prefix = tmp_path / "00000_tokens"
    for path, content in zip((bin_path(prefix), idx_path(prefix)), DATATROVE[dtype], strict=True):
        path.write_bytes(bytes.fromhex(content))
    header, corpus = verify_pair(prefix)
    assert (header, corpus) == (IndexedHeader(np.dtype(dtype), 2, 2, 6), None)
    documents = IndexedDocuments(prefix)
    assert [documents[i].tolist() for i in range(2)] == [[5, 6, 7, 0], [1, 0]]
    with pytest.raises(DataError, match=rf"\.bin: byte {2 * header.dtype.itemsize}: token 7 lies outside"):
        verify_pair(prefix, vocab_size=7)
