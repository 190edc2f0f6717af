"""What `inspect` prints of a pair, beside the documents it was made of; and what reading one of many touches."""

from __future__ import annotations

import math
import resource
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.data_tools_command import run
from support.pairs import write_equal_documents
from support.text_files import TEXTS, decoded, write_kind

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.data_tools.tokens.indexed import bin_path, idx_path
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.inspection import PairStatistics, describe_pair, pair_statistics, tokenizer_of
from efficientbench.data_tools.tokens.manifest import Corpus


@pytest.fixture(scope="module")
def corpus(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    return tokenize_files([write_kind(folder, "jsonl", TEXTS)], folder / "tokens", tokenizer)


def test_inspected_documents_match_the_written_ones(corpus: Corpus) -> None:
    documents = IndexedDocuments(corpus.prefix)
    assert decoded(corpus.prefix, corpus.tokenizer_folder) == TEXTS
    assert {documents[number][-1] for number in range(len(documents))} == {corpus.eod_id}
    assert documents.lengths().tolist() == [len(documents[number]) for number in range(len(TEXTS))]
    for number in (-1, len(TEXTS)):
        with pytest.raises(IndexError, match=r"has 600, counted from 0"):
            documents[number]


def test_documents_of_several_sequences_are_shown(tmp_path: Path) -> None:
    """Megatron's writer makes such documents of sentences."""
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


def test_text_of_a_document_cannot_control_the_terminal(tokenizer: Path, tmp_path: Path) -> None:
    source = write_kind(tmp_path, "jsonl", ["before \x1b[2J\x9b1m\x07\u202e after\n\tthe line \u3000"])
    prefix = tokenize_files([source], tmp_path / "tokens", tokenizer).prefix
    *_, shown = describe_pair(prefix, tokenizer_of(prefix, None), documents=1)
    assert shown.startswith("before \ufffd[2J\ufffd1m\ufffd\ufffd after\n\tthe line \u3000")


def test_figures_match_plain_counting(corpus: Corpus) -> None:
    found = pair_statistics(corpus.prefix, tokenizer_of(corpus.prefix, None))
    documents = IndexedDocuments(corpus.prefix)
    ids = [token for number in range(len(TEXTS)) for token in documents[number].tolist()]
    shares = [count / len(ids) for count in Counter(ids).values()]
    assert found.unigram_entropy_nats == pytest.approx(-sum(share * math.log(share) for share in shares), rel=1e-12)
    assert found.bytes_per_token == pytest.approx(sum(len(text.encode()) for text in TEXTS) / len(ids), rel=1e-12)
    histogram = found.histogram()
    assert sum(count for _, _, count in histogram) == len(TEXTS)
    for low, high, count in histogram:
        assert count == sum(low <= length <= high for length in found.lengths.tolist())
    assert all(before[1] + 1 == after[0] for before, after in zip(histogram, histogram[1:], strict=False))


@pytest.mark.parametrize(
    ("lengths", "ranges"),
    [([1], [(1, 1, 1)]), ([0, 1, 2, 3, 8], [(0, 0, 1), (1, 1, 1), (2, 3, 2), (4, 7, 0), (8, 15, 1)])],
)
def test_a_histogram_of_the_shortest_documents_is_printed(
    lengths: list[int], ranges: list[tuple[int, int, int]]
) -> None:
    assert PairStatistics(np.array(lengths), np.ones(1), None).histogram() == ranges


def test_the_inspect_command_prints_figures_and_names_damage(corpus: Corpus, tmp_path: Path) -> None:
    code, out, error = run("inspect", bin_path(corpus.prefix), "--documents", 2)
    assert (code, error) == (0, "")
    assert f"documents           600\ntokens              {corpus.tokens:,} (uint16, " in out
    assert (TEXTS[1] in out, TEXTS[2] in out) == (True, False)
    broken = tmp_path / "broken"
    bin_path(broken).write_bytes(bin_path(corpus.prefix).read_bytes())
    idx_path(broken).write_bytes(idx_path(corpus.prefix).read_bytes()[:-1])
    code, out, error = run("inspect", broken)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith(f"error: {idx_path(broken)}: byte ")


def test_a_pair_without_its_tokenizer_is_inspected(corpus: Corpus, tmp_path: Path) -> None:
    prefix = tmp_path / "pair"
    for path in (bin_path, idx_path):
        path(prefix).write_bytes(path(corpus.prefix).read_bytes())
    lines = "\n".join(describe_pair(prefix, None, 2))
    assert "bytes a token       n/a: the tokenizer is not known" in lines
    assert "(ids: the tokenizer is not known)" in lines
    given = tokenizer_of(prefix, str(corpus.tokenizer_folder))
    assert pair_statistics(prefix, given).bytes_per_token == pytest.approx(corpus.utf8_bytes / corpus.tokens)
    with pytest.raises(DataError, match="p.bin and p.idx"):
        IndexedDocuments(tmp_path / "p")


def test_reading_one_document_of_a_million_costs_as_much_as_one_of_a_thousand(tmp_path: Path) -> None:
    def open_and_read(size: int) -> None:
        assert IndexedDocuments(tmp_path / str(size))[size // 3].tolist() == [size // 3 % 50_000] * 8

    for size in (1_000, 1_000_000):
        write_equal_documents(tmp_path / str(size), size, 8)
        open_and_read(size)
        tracemalloc.start()
        faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        open_and_read(size)
        # The large index alone has 4,883 pages and 20 MB.
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before < 200
        assert tracemalloc.get_traced_memory()[1] < 200_000
        tracemalloc.stop()
