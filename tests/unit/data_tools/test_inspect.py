"""What `inspect` says of a pair, held against the documents it was made of; and what reading one of many touches."""

from __future__ import annotations

import json
import math
import random
import resource
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.data_tools_command import run
from support.pairs import write_equal_documents

from efficientbench.data_tools.corpus import Corpus, prepare_corpus
from efficientbench.data_tools.errors import DataError
from efficientbench.data_tools.indexed import bin_path, idx_path
from efficientbench.data_tools.indexed_documents import IndexedDocuments
from efficientbench.data_tools.inspection import describe_pair, pair_statistics, tokenizer_of
from efficientbench.data_tools.manifest import manifest_path
from efficientbench.data_tools.tokenizer import train_tokenizer

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    chosen = random.Random(0)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(1, 300))) for _ in range(200)]


@pytest.fixture(scope="module")
def corpus(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    source = folder / "data.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    train_tokenizer(texts, 290, folder / "tokenizer")
    return prepare_corpus(source, str(folder / "tokenizer"), folder / "cache", 0)


def test_documents_are_those_that_were_written(corpus: Corpus, texts: list[str]) -> None:
    documents = IndexedDocuments(corpus.prefix)
    tokenizer = tokenizer_of(corpus.prefix, None)
    assert tokenizer is not None
    assert len(documents) == len(texts)
    for number, text in enumerate(texts):
        *ids, end = documents[number].tolist()
        assert (tokenizer.backend.decode(ids), end) == (text, corpus.eod_id)
    assert documents.lengths().tolist() == [len(documents[number]) for number in range(len(texts))]
    for number in (-1, len(texts)):
        with pytest.raises(IndexError, match=r"has 200, counted from 0"):
            documents[number]


def test_documents_of_several_sequences(tmp_path: Path) -> None:
    """As megatron's writer makes them of sentences."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(tmp_path / "p.bin"), dtype=np.int32)
    for sentences in ([[1, 2], [3]], [[4, 5, 6]], [[7], [], [8, 9]]):
        for sentence in sentences:
            builder.add_item(torch.tensor(sentence, dtype=torch.int32))
        builder.end_document()
    builder.finalize(str(tmp_path / "p.idx"))
    documents = IndexedDocuments(tmp_path / "p")
    assert [documents[number].tolist() for number in range(3)] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert documents.lengths().tolist() == [3, 3, 3]


def test_figures_by_plain_counting(corpus: Corpus, texts: list[str]) -> None:
    found = pair_statistics(corpus.prefix, tokenizer_of(corpus.prefix, None))
    documents = IndexedDocuments(corpus.prefix)
    ids = [token for number in range(len(texts)) for token in documents[number].tolist()]
    shares = [ids.count(token) / len(ids) for token in set(ids)]
    assert found.unigram_entropy_nats == pytest.approx(-sum(share * math.log(share) for share in shares), rel=1e-12)
    assert found.bytes_per_token == pytest.approx(sum(len(text.encode()) for text in texts) / len(ids), rel=1e-12)
    histogram = found.histogram()
    assert sum(count for _, _, count in histogram) == len(texts)
    for low, high, count in histogram:
        assert count == sum(low <= length <= high for length in found.lengths.tolist())
    assert all(before[1] + 1 == after[0] for before, after in zip(histogram, histogram[1:], strict=False))


@pytest.mark.parametrize(
    ("lengths", "ranges"),
    [([1], [(1, 1, 1)]), ([0, 1, 2, 3, 8], [(0, 0, 1), (1, 1, 1), (2, 3, 2), (4, 7, 0), (8, 15, 1)])],
)
def test_histogram_of_the_shortest(lengths: list[int], ranges: list[tuple[int, int, int]]) -> None:
    from efficientbench.data_tools.inspection import PairStatistics

    assert PairStatistics(np.array(lengths), np.ones(1), None, None).histogram() == ranges


def test_the_command(corpus: Corpus, texts: list[str], tmp_path: Path) -> None:
    code, out, error = run("inspect", bin_path(corpus.prefix), "--documents", 1)
    assert (code, error) == (0, "")
    assert f"documents           200\ntokens              {corpus.tokens:,} (uint16, " in out
    assert texts[0][:400] in out
    assert texts[1][:400] not in out
    broken = tmp_path / "broken"
    bin_path(broken).write_bytes(bin_path(corpus.prefix).read_bytes())
    idx_path(broken).write_bytes(idx_path(corpus.prefix).read_bytes()[:-1])
    code, out, error = run("inspect", broken)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith(f"error: {idx_path(broken)}: byte ")


def test_a_pair_of_unknown_tokens(corpus: Corpus, tmp_path: Path) -> None:
    prefix = tmp_path / "pair"
    for path in (bin_path, idx_path):
        path(prefix).write_bytes(path(corpus.prefix).read_bytes())
    assert not manifest_path(prefix).exists()
    lines = "\n".join(describe_pair(prefix, None, 2))
    assert "bytes a token       n/a: the tokenizer is not known" in lines
    assert "(ids: the tokenizer is not known)" in lines
    given = tokenizer_of(prefix, str(corpus.tokenizer_folder))
    assert pair_statistics(prefix, given).bytes_per_token == pytest.approx(corpus.utf8_bytes / corpus.tokens)
    with pytest.raises(DataError, match="p.bin and p.idx"):
        IndexedDocuments(tmp_path / "p")


def faults_and_memory(read: Callable[[], object]) -> tuple[int, int]:
    """Page faults of `read()`, and the most bytes that Python and numpy held for it."""
    tracemalloc.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    read()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    memory_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return faults, memory_bytes


def test_one_document_of_a_million_costs_what_one_of_a_thousand_costs(tmp_path: Path) -> None:
    sizes = (1_000, 1_000_000)
    for size in sizes:
        write_equal_documents(tmp_path / str(size), size, 8)

    def open_and_read(size: int) -> None:
        assert IndexedDocuments(tmp_path / str(size))[size // 3].tolist() == [size // 3 % 50_000] * 8

    for size in sizes:
        open_and_read(size)
        faults, memory_bytes = faults_and_memory(lambda size=size: open_and_read(size))
        # The large index alone has 4,883 pages and 20 MB.
        assert faults < 200
        assert memory_bytes < 200_000
