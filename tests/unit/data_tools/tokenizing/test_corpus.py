"""The whole way from a source to a prepared corpus: what it holds, that it is made once, and that nothing is lost."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.repository import ROOT
from support.text_files import write_kind

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import sha256
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer, train_tokenizer
from efficientbench.data_tools.tokenizing.corpus import load_corpus, prepare_corpus
from efficientbench.data_tools.tokens.indexed import bin_path, idx_path
from efficientbench.data_tools.tokens.indexed_documents import token_counts
from efficientbench.data_tools.tokens.inspection import pair_statistics

DOCUMENTS = [f"Document {number}: <|endoftext|> é\u0301 {'some text and more ' * number}" for number in range(50)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_kind(tmp_path, "jsonl", DOCUMENTS)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer") / "bpe"
    train_tokenizer(DOCUMENTS, 300, folder)
    return str(folder)


def start(*arguments: object) -> subprocess.Popen[str]:
    """`prepare_corpus(*arguments)` in a process of its own; it prints the corpus."""
    code = (
        "import logging; from pathlib import Path, PosixPath; "
        "from efficientbench.data_tools.tokenizing.corpus import *; "
        f"logging.basicConfig(level=logging.INFO); print(prepare_corpus(*{arguments!r}))"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes)  # type: ignore[call-overload,no-any-return]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith((".lock", "checksums.json")))


def test_the_embedded_sample_is_prepared_once_and_is_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = prepare_corpus(None, None, tmp_path / "cache", 4096)
    for name in ("embedded_documents", "train_tokenizer", "tokenize_files"):  # a second call needs none of them
        monkeypatch.delattr(f"efficientbench.data_tools.tokenizing.corpus.{name}")
    assert prepare_corpus(None, None, tmp_path / "cache", 4096) == corpus
    assert load_corpus(corpus.manifest) == corpus
    assert corpus.vocab_size == 4096
    assert 2.5 < corpus.utf8_bytes / corpus.tokens < 5, "bytes per token of English with 4,096 tokens"
    # English with a vocabulary of this size: far from uniform (ln 4096 = 8.3), and far from trivial.
    assert 5.5 < pair_statistics(corpus.prefix, None).unigram_entropy_nats < 7.5


def test_megatron_reads_the_prepared_documents(source: Path, tokenizer: str, tmp_path: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    corpus = prepare_corpus(source, tokenizer, tmp_path / "cache", 300)
    dataset = IndexedDataset(str(corpus.prefix))
    backend = load_tokenizer(corpus.tokenizer_folder).backend
    decoded = [backend.decode(dataset[i][:-1], skip_special_tokens=False) for i in range(len(dataset))]
    assert decoded == DOCUMENTS
    assert all(dataset[i][-1] == corpus.eod_id for i in range(len(dataset)))
    assert (sum(dataset.sequence_lengths), len(dataset)) == (corpus.tokens, corpus.documents)
    counts = token_counts(corpus.prefix, corpus.vocab_size)
    assert counts[corpus.eod_id] == len(DOCUMENTS)
    text_bytes = sum(len(document.encode()) for document in DOCUMENTS)
    assert (counts * np.load(corpus.token_bytes_path)).sum() == corpus.utf8_bytes == text_bytes


def test_the_cache_depends_on_content_not_on_names(source: Path, tokenizer: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    corpus = prepare_corpus(source, tokenizer, cache, 300)
    copy = Path(shutil.copy(source, tmp_path / "copy.jsonl"))
    moved = shutil.copytree(tokenizer, tmp_path / "moved")
    assert prepare_corpus(copy, str(moved), cache, 999) == replace(corpus, source=str(copy))
    trained = prepare_corpus(source, None, cache, 290)
    assert (trained.vocab_size, trained.prefix == corpus.prefix) == (290, False)
    with source.open("a") as stream:
        stream.write('{"text": "one more"}\n')
    assert prepare_corpus(source, tokenizer, cache, 300).documents == corpus.documents + 1
    assert len(left_in(cache)) == 3


def test_a_prepared_folder_can_be_moved(source: Path, tokenizer: str, tmp_path: Path) -> None:
    corpus = prepare_corpus(source, tokenizer, tmp_path / "cache", 300)
    (tmp_path / "cache").rename(tmp_path / "other")
    moved = load_corpus(tmp_path / "other" / corpus.manifest.relative_to(tmp_path / "cache"))
    assert bin_path(moved.prefix).is_file()
    assert load_tokenizer(moved.tokenizer_folder).fingerprint == corpus.tokenizer_fingerprint
    assert len(np.load(moved.token_bytes_path)) == moved.vocab_size


def test_a_tokenized_pair_is_used_in_place(source: Path, tokenizer: str, tmp_path: Path) -> None:
    corpus = prepare_corpus(source, tokenizer, tmp_path / "cache", 300)
    other = tmp_path / "other"
    for named in (corpus.prefix, bin_path(corpus.prefix), idx_path(corpus.prefix)):
        assert prepare_corpus(named, None, other, 300) == corpus
    assert prepare_corpus(corpus.prefix, tokenizer, other, 300) == corpus
    train_tokenizer(["other text"], 300, tmp_path / "tokenizer")
    with pytest.raises(DataError, match="tokens was made with another tokenizer than .*tokenizer: leave"):
        prepare_corpus(corpus.prefix, str(tmp_path / "tokenizer"), other, 300)
    assert left_in(other) == []


def test_a_manifest_beside_another_pair_is_refused(source: Path, tokenizer: str, tmp_path: Path) -> None:
    corpus = prepare_corpus(source, tokenizer, tmp_path / "cache", 300)
    source.write_text('{"text": "other text"}\n')
    other = prepare_corpus(source, tokenizer, tmp_path / "cache", 300)
    for path in (bin_path, idx_path):
        shutil.copy(path(other.prefix), path(corpus.prefix))
    with pytest.raises(DataError, match=r"holds 1 document of \d+ tokens, but .*manifest\.json says 50 of [0-9,]+:"):
        prepare_corpus(corpus.prefix, None, tmp_path / "cache", 300)


def test_a_tokenized_pair_without_manifest_needs_its_tokenizer(source: Path, tokenizer: str, tmp_path: Path) -> None:
    corpus = prepare_corpus(source, tokenizer, tmp_path / "cache", 300)
    corpus.manifest.unlink()
    with pytest.raises(DataError, match=r"no tokens\.manifest\.json lies beside .* give the tokenizer that made it"):
        prepare_corpus(corpus.prefix, None, tmp_path / "other", 300)
    adopted = prepare_corpus(corpus.prefix, tokenizer, tmp_path / "other", 300)
    assert load_corpus(adopted.manifest) == adopted == prepare_corpus(corpus.prefix, tokenizer, tmp_path / "other", 300)
    own = ("manifest", "source", "tokenizer_folder", "token_bytes_path")
    assert adopted == replace(corpus, **{name: getattr(adopted, name) for name in own})
    tokens = np.fromfile(bin_path(corpus.prefix), np.uint16)
    tokens[::-1].tofile(bin_path(corpus.prefix))
    assert prepare_corpus(corpus.prefix, tokenizer, tmp_path / "other", 300).fingerprint != adopted.fingerprint
    train_tokenizer(["too few"], 257, tmp_path / "tokenizer")
    with pytest.raises(DataError, match=r"tokens\.bin: byte \d+: token \d+ lies outside the tokenizer's vocabulary"):
        prepare_corpus(corpus.prefix, str(tmp_path / "tokenizer"), tmp_path / "other", 300)


def test_errors_in_the_source_leave_no_corpus(tmp_path: Path, tokenizer: str) -> None:
    cache = tmp_path / "cache"
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "good"}\n{"txt": "bad"}\n')
    long = "x" * 300
    for source, chosen, message in (
        ("none.jsonl", tokenizer, r"none\.jsonl: no such file"),
        ("none.bin", tokenizer, r"none\.idx is missing"),
        # As for a folder that others may not enter.
        (long, tokenizer, r"x{300}.*: File name too long"),
        (f"{long}.bin", tokenizer, r"x{300}.*: File name too long"),
        ("bad.jsonl", long, r"x{300}.*: File name too long"),
    ):
        with pytest.raises(DataError, match=message):
            prepare_corpus(tmp_path / source, chosen, cache, 300)
    for chosen in (tokenizer, None):
        unusable = r"1 of 2 documents are not usable, .*bad\.jsonl:2: .*the key 'text' is missing; keys there: 'txt'"
        with pytest.raises(DataError, match=unusable) as caught:
            prepare_corpus(bad, chosen, cache, 300)
        (listed,) = re.findall(r"\S+\.rejects\.jsonl", str(caught.value))
        assert json.loads(Path(listed).read_text())["line"] == 2
    assert not list(cache.glob("*/*.manifest.json"))
    with pytest.raises(DataError, match=r"bad\.jsonl/cache.*: Not a directory"):
        prepare_corpus(None, tokenizer, bad / "cache", 300)


@pytest.mark.parametrize(
    "part", ["tokens.idx", "tokens.bin", "tokens.manifest.json", "tokens.token_bytes.npy", "tokens.tokenizer"]
)
def test_a_damaged_cache_is_rebuilt(
    source: Path, tokenizer: str, tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = prepare_corpus(source, tokenizer, tmp_path / "cache", 300)
    path = corpus.prefix.parent / part
    if part.endswith((".json", ".idx", ".bin")):
        path.write_bytes(path.read_bytes()[:-8])
    else:
        path.rename(tmp_path / "away")
    assert prepare_corpus(source, tokenizer, tmp_path / "cache", 300) == corpus
    assert (part == "tokens.manifest.json") or part in caplog.text
    assert "damaged" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("[]", "is not a corpus manifest of format version 2"),
        ('{"format_version": 0}', "is not a corpus manifest of format version 2"),
        ('{"format_version": 2, "prefix": "tokens"}', "lacks the key 'vocab_size'"),
    ],
)
def test_unusable_manifests_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "tokens.manifest.json"
    with pytest.raises(DataError, match=r"tokens\.manifest\.json: no such manifest"):
        load_corpus(path)
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        load_corpus(path)


@pytest.mark.proof
def test_two_concurrent_processes_prepare_one_corpus(tmp_path: Path) -> None:
    processes = [start(None, None, tmp_path, 1024) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0] != ""
    logs = outputs[0][1] + outputs[1][1]
    assert logs.count("INFO:efficientbench.data_tools.tokenizing.corpus:preparing") == 1
    assert len(left_in(tmp_path)) == 1


@pytest.mark.parametrize("moment", ["tokens.parts", "tokens.bin.partial", "tokens.bin"])
def test_a_killed_process_leaves_no_complete_corpus(tokenizer: str, tmp_path: Path, moment: str) -> None:
    source = tmp_path / "data.txt"
    source.write_text("\n\n".join(DOCUMENTS * 100))
    undisturbed = prepare_corpus(source, tokenizer, tmp_path / "undisturbed", 300)
    for attempt in range(20):  # on a busy machine the process may be done before the signal reaches it
        cache = tmp_path / str(attempt)
        process = start(source, tokenizer, cache, 300)
        while not list(cache.glob(f"corpus-*/{moment}")) and process.poll() is None:
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        unfinished = left_in(cache) and not list(cache.glob("corpus-*/*.manifest.json"))
        again = prepare_corpus(source, tokenizer, cache, 300)
        assert again.fingerprint == undisturbed.fingerprint
        assert left_in(cache) == [again.prefix.parent.name]
        assert left_in(again.prefix.parent) == left_in(undisturbed.prefix.parent)
        if process.returncode == -signal.SIGKILL and unfinished:
            return
    pytest.fail("no process was killed half-way")


def test_a_folder_of_many_file_kinds_gives_the_tokens_of_one_file(source: Path, tokenizer: str, tmp_path: Path) -> None:
    """Parquet, compressed JSONL and text in one folder give the tokens of the same documents in one file."""
    folder = tmp_path / "texts"
    (folder / "below").mkdir(parents=True)
    write_kind(folder / "below", "jsonl", DOCUMENTS[:20])
    write_kind(folder, "jsonl.gz", DOCUMENTS[20:40])
    write_kind(folder, "parquet", DOCUMENTS[40:])
    whole = prepare_corpus(source, tokenizer, tmp_path / "cache", 300)
    parts = prepare_corpus(folder, tokenizer, tmp_path / "cache", 300)
    assert parts.prefix != whole.prefix
    assert (parts.fingerprint, parts.source) == (whole.fingerprint, str(folder))
    assert prepare_corpus(folder / "**" / "*[lzt]", tokenizer, tmp_path / "cache", 300).prefix == parts.prefix


def test_the_current_folder_can_be_the_source(
    source: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = prepare_corpus(source, tokenizer, tmp_path / "cache", 300)
    (tmp_path / "texts").mkdir()
    shutil.copy(source, tmp_path / "texts")
    monkeypatch.chdir(tmp_path / "texts")
    assert prepare_corpus(Path("."), tokenizer, tmp_path / "cache", 300).fingerprint == named.fingerprint


def test_unchanged_files_are_not_read_again(
    source: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = prepare_corpus(source, tokenizer, tmp_path / "cache", 300)
    read: list[Path] = []
    monkeypatch.setattr("efficientbench.basics.files.sha256", lambda path: read.append(path) or sha256(path))
    assert prepare_corpus(source, tokenizer, tmp_path / "cache", 300) == corpus
    assert read == []
    source.touch()
    prepare_corpus(source, tokenizer, tmp_path / "cache", 300)
    assert read == [source]


def test_the_same_bytes_read_in_another_way_are_another_corpus(source: Path, tokenizer: str, tmp_path: Path) -> None:
    shutil.copy(source, tmp_path / "data.txt")
    as_text = prepare_corpus(tmp_path / "data.txt", tokenizer, tmp_path / "cache", 300)
    assert as_text.documents != prepare_corpus(source, tokenizer, tmp_path / "cache", 300).documents == len(DOCUMENTS)
