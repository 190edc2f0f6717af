"""A run's own verification of its corpus: what it finds, what it reads for that, and what it reads again."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.pairs import grow
from support.text_files import TEXTS, write_kind

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import BLOCK_BYTES
from efficientbench.data_tools.tokenizing.corpus import Corpus, load_corpus, prepare_corpus
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.data_tools.tokens.indexed import bin_path, idx_path
from efficientbench.data_tools.tokens.intact import BlockReader, verified_part
from efficientbench.data_tools.tokens.manifest import load_checksums

UINT16 = np.dtype(np.uint16)
FEW_BYTES = 200_000
"""More than manifests and memory have here, and less than any pair."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """A folder with a text, and its more than one block of tokens."""
    folder = tmp_path_factory.mktemp("made")
    tokenize_files([write_kind(folder, "jsonl", TEXTS * 20)], folder / "tokens", tokenizer)
    return folder


@pytest.fixture
def corpus(tmp_path: Path, made: Path) -> Corpus:
    """A copy of the tokens in a folder of its own, with their manifest."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return load_corpus(tmp_path / "tokens.manifest.json")


def bytes_read(call: Callable[[], object]) -> int:
    """How many bytes this process reads from files during a call."""

    def so_far() -> int:
        return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])

    begin = so_far()
    call()
    return so_far() - begin


def every_tenth_token(corpus: Corpus) -> None:
    tokens = np.memmap(bin_path(corpus.prefix), np.uint16, "r+")
    tokens[::10] = (tokens[::10] + 1) % corpus.vocab_size


def doubled_lengths(corpus: Corpus) -> None:
    np.save(corpus.token_bytes_path, np.load(corpus.token_bytes_path) * 2)


def another_tokenizer(corpus: Corpus) -> None:
    path = corpus.tokenizer_folder / "tokenizer.json"
    path.write_text(re.sub(r":(\s*)110,", r":\g<1>120,", path.read_text()))


def another_index(corpus: Corpus) -> None:
    lengths = np.memmap(idx_path(corpus.prefix), np.int32, "r+", offset=34, shape=(corpus.documents,))
    lengths[[3, 4]] += [1, -1]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (every_tenth_token, r"tokens\.bin: bytes 0 to 1,048,576: not what was written there"),
        (doubled_lengths, r"tokens\.token_bytes\.npy: bytes 0 to [\d,]+: not what was written there"),
        (another_tokenizer, r"tokens\.tokenizer/tokenizer\.json: bytes 0 to [\d,]+: not what was written there"),
        (another_index, r"tokens\.idx: bytes 0 to [\d,]+: not what was written there"),
        (lambda corpus: (corpus.tokenizer_folder / "tokenizer.json").unlink(), r"tokenizer\.json is missing, which"),
    ],
)
def test_a_run_refuses_a_damaged_corpus(
    corpus: Corpus, tmp_path: Path, damage: Callable[[Corpus], None], named: str
) -> None:
    """Damage is detected after an earlier verification too, and if modification times were set back."""
    paths = [path for path in tmp_path.rglob("tokens.*") if path.is_file()]
    times = {path: (path.stat().st_atime_ns, path.stat().st_mtime_ns) for path in paths}
    assert prepare_corpus(corpus.prefix, None, tmp_path / "cache", 300) == corpus
    damage(corpus)
    for path, both in times.items():
        os.utime(path, ns=both)
    for _ in range(2):
        with pytest.raises(DataError, match=named) as caught:
            prepare_corpus(corpus.prefix, None, tmp_path / "cache", 300)
        assert "\n" not in str(caught.value)
        assert "put the right file back, or delete the pair and its manifest" in str(caught.value)


def test_a_second_start_verifies_without_reading(corpus: Corpus, tmp_path: Path) -> None:
    def start() -> Corpus:
        return prepare_corpus(corpus.prefix, None, tmp_path / "cache", 300)

    size_bytes = bin_path(corpus.prefix).stat().st_size + idx_path(corpus.prefix).stat().st_size
    assert bytes_read(start) >= size_bytes > FEW_BYTES
    assert bytes_read(start) < FEW_BYTES
    # A copy in its place is another file.
    bin_path(corpus.prefix).write_bytes(bin_path(corpus.prefix).read_bytes())
    assert bytes_read(start) >= bin_path(corpus.prefix).stat().st_size
    assert verified_part(corpus) == "whole"


def test_a_damaged_prepared_text_is_rebuilt(tmp_path: Path, tokenizer: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = write_kind(tmp_path, "jsonl", TEXTS)
    corpus = prepare_corpus(source, str(tokenizer), tmp_path / "cache", 300)
    whole = bin_path(corpus.prefix).read_bytes()
    every_tenth_token(corpus)
    assert prepare_corpus(source, str(tokenizer), tmp_path / "cache", 300) == corpus
    assert bin_path(corpus.prefix).read_bytes() == whole
    assert re.search(r"damaged and will be made again: .*tokens\.bin: bytes 0 to", caplog.text)


def test_a_corpus_of_terabytes_starts_at_once_and_is_verified_as_it_is_read(corpus: Corpus, tmp_path: Path) -> None:
    grow(corpus.prefix, 1 << 40)
    tokens = bin_path(corpus.prefix)
    corpus = load_corpus(corpus.manifest)
    assert bytes_read(lambda: prepare_corpus(corpus.prefix, None, tmp_path / "cache", 300)) < 100e6
    assert verified_part(corpus) == "blocks read"
    damaged = 700_000  # a block of the hole
    with tokens.open("r+b") as stream:
        stream.seek(damaged * BLOCK_BYTES + 77)
        stream.write(b"\x01")
    reader = BlockReader(tokens, load_checksums(corpus.manifest)[tokens], corpus.manifest, UINT16, corpus.vocab_size)

    def read() -> None:
        for begin in (0, BLOCK_BYTES - 1, 5 * BLOCK_BYTES, (damaged + 1) * BLOCK_BYTES):
            reader.verify(begin, begin + 4)
        reader.verify((damaged - 1) * BLOCK_BYTES, damaged * BLOCK_BYTES)

    assert bytes_read(read) < 6 * BLOCK_BYTES
    assert bytes_read(read) < FEW_BYTES
    begin = damaged * BLOCK_BYTES
    with pytest.raises(DataError, match=rf"tokens\.bin: bytes {begin:,} to {begin + BLOCK_BYTES:,}: not what was"):
        reader.verify(begin - 4, begin + 4)


def test_a_token_outside_the_vocabulary_is_detected_when_it_is_read(corpus: Corpus) -> None:
    tokens = bin_path(corpus.prefix)
    reader = BlockReader(tokens, load_checksums(corpus.manifest)[tokens], corpus.manifest, UINT16, 100)
    with pytest.raises(DataError, match=r"tokens\.bin: from byte 0 a token lies outside the vocabulary of 100 in .*"):
        reader.verify(0, 4)


def test_a_manifest_of_version_1_is_refused_with_a_remedy(corpus: Corpus, tokenizer: Path, tmp_path: Path) -> None:
    content = json.loads(corpus.manifest.read_text())
    del content["files"]
    corpus.manifest.write_text(json.dumps({**content, "format_version": 1}))
    with pytest.raises(DataError, match=r"format version 1, .*: delete it and give the tokenizer (\S+) \(") as caught:
        prepare_corpus(corpus.prefix, None, tmp_path / "cache", 300)
    corpus.manifest.unlink()
    (named,) = re.findall(r"tokenizer (\S+) \(--tokenizer\)", str(caught.value))
    assert prepare_corpus(corpus.prefix, named, tmp_path / "cache", 300).fingerprint == corpus.fingerprint
    # The other way.
    bin_path(corpus.prefix).unlink()
    idx_path(corpus.prefix).unlink()
    again = tokenize_files([tmp_path / "data.jsonl"], corpus.prefix, tokenizer)
    assert again.fingerprint == corpus.fingerprint
