"""Megatron's own reader and writer as the oracle of the indexed format, and damaged pairs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.pairs import overwrite

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokens.indexed import (
    DTYPES,
    IndexedHeader,
    bin_path,
    check_indexed,
    idx_path,
    index_blocks,
    token_dtype,
)
from efficientbench.data_tools.tokens.indexed_documents import token_counts
from efficientbench.data_tools.tokens.inspection import pair_statistics

DOCUMENTS = [[1, 2, 3, 0], [0], [65_499, 7, 7, 7, 7, 0]]


def write(prefix: Path, documents: list[list[int]], dtype: np.dtype) -> Path:
    bin_path(prefix).write_bytes(np.array(sum(documents, []), dtype).tobytes())
    lengths = [np.array([len(document) for document in part], np.int32) for part in (documents[:2], documents[2:])]
    idx_path(prefix).write_bytes(b"".join(index_blocks(lambda: lengths, len(documents), dtype)))
    return prefix


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Bytes: header 34, lengths 34-46, pointers 46-70, document indices 70-102; the `.bin` has 22."""
    return write(tmp_path / "tokens.v1", DOCUMENTS, np.dtype(np.uint16))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    documents=st.lists(st.lists(st.integers(0, 65_535), min_size=1), min_size=1),
    dtype=st.sampled_from([np.uint16, np.int32, np.int64]),
)
def test_megatron_reads_our_pairs(tmp_path: Path, documents: list[list[int]], dtype: type[np.integer]) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    prefix = write(tmp_path / "tokens", documents, np.dtype(dtype))
    dataset = IndexedDataset(str(prefix))
    assert [dataset[i].tolist() for i in range(len(dataset))] == documents
    assert dataset[0].dtype == dtype
    assert dataset.document_indices.tolist() == list(range(len(documents) + 1))
    tokens = sum(map(len, documents))
    assert check_indexed(prefix) == IndexedHeader(np.dtype(dtype), len(documents), len(documents), tokens)


@pytest.mark.parametrize("multimodal", [False, True])
def test_pairs_written_by_megatron_are_accepted(tmp_path: Path, multimodal: bool) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    assert {code: DType.dtype_from_code(code) for code in DTYPES} == DTYPES
    prefix = tmp_path / "tokens"
    builder = IndexedDatasetBuilder(str(bin_path(prefix)), dtype=np.int32, multimodal=multimodal)
    for sequences in ([[1, 2], [3]], [[4, 5, 6]]):  # a document may have several sequences
        for sequence in sequences:
            builder.add_item(torch.tensor(sequence))
        builder.end_document()
    builder.finalize(str(idx_path(prefix)))
    assert check_indexed(prefix) == IndexedHeader(np.dtype(np.int32), sequences=3, documents=2, tokens=6)


def test_the_dtype_follows_megatrons_rule() -> None:
    from megatron.core.datasets.indexed_dataset import DType

    for vocab_size in (1, 65_499, 65_500, 151_936):
        assert token_dtype(vocab_size) == DType.optimal_dtype(vocab_size)


def truncate(path: Callable[[Path], Path], size: int) -> Callable[[Path], None]:
    def damage(prefix: Path) -> None:
        path(prefix).write_bytes(path(prefix).read_bytes()[:size])

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda prefix: bin_path(prefix).unlink(), "tokens.v1.bin is missing"),
        (lambda prefix: idx_path(prefix).unlink(), "tokens.v1.idx is missing"),
        (truncate(idx_path, 0), "tokens.v1.idx: byte 0: it ends inside its header"),
        (truncate(idx_path, 33), "tokens.v1.idx: byte 33: it ends inside its header"),
        (truncate(idx_path, 101), "tokens.v1.idx: byte 101: its header (3 sequences, 4 document indices) asks for 102"),
        (overwrite(idx_path, 102, b"\0"), "tokens.v1.idx: byte 102: its header"),
        (overwrite(idx_path, 0, b"TNTIDX"), "tokens.v1.idx: byte 0: not a Megatron index"),
        (overwrite(idx_path, 9, b"\2"), "tokens.v1.idx: byte 9: version 2"),
        (overwrite(idx_path, 17, b"\7"), "tokens.v1.idx: byte 17: dtype code 7 cannot hold tokens; known: 1 (uint8)"),
        (overwrite(idx_path, 18, struct.pack("<Q", 0)), "tokens.v1.idx: byte 18: it holds no document"),
        (overwrite(idx_path, 18, struct.pack("<Q", 1 << 62)), "tokens.v1.idx: byte 102: its header"),
        (overwrite(idx_path, 26, struct.pack("<Q", 1)), "tokens.v1.idx: byte 26: 1 document indices"),
        (overwrite(idx_path, 38, struct.pack("<i", -1)), "tokens.v1.idx: byte 38: sequence 1: the length is negative"),
        (overwrite(idx_path, 42, struct.pack("<i", 7)), "tokens.v1.idx: byte 62: sequence 2: the sequence ends past"),
        (overwrite(idx_path, 54, struct.pack("<q", -2)), "tokens.v1.idx: byte 54: sequence 1: the pointer lies"),
        (overwrite(idx_path, 54, struct.pack("<q", 1 << 62)), "tokens.v1.idx: byte 54: sequence 1: the pointer lies"),
        (overwrite(idx_path, 70, struct.pack("<q", 1)), "tokens.v1.idx: byte 70: document index 0 is 1"),
        (overwrite(idx_path, 78, struct.pack("<q", 3)), "tokens.v1.idx: byte 86: document index 2 is 2"),
        (overwrite(idx_path, 94, struct.pack("<q", 2)), "tokens.v1.idx: byte 94: document index 3 is 2"),
        (truncate(bin_path, 21), "tokens.v1.idx: byte 62: sequence 2: the sequence ends past the end of tokens.v1.bin"),
        (overwrite(bin_path, 22, b"\0\0"), "tokens.v1.bin: byte 22: the index accounts for 22 bytes, the file has 24"),
        (overwrite(idx_path, 17, b"\1"), "tokens.v1.bin: byte 16: the index accounts for 16 bytes"),
    ],
)  # fmt: skip
def test_damage_is_named_with_its_byte(pair: Path, damage: Callable[[Path], None], message: str) -> None:
    check_indexed(pair)
    damage(pair)
    with pytest.raises(DataError) as caught:
        check_indexed(pair)
    assert str(caught.value).startswith(str(pair.parent / message.split(" is ")[0].split(":")[0]))
    assert message in str(caught.value)


def test_a_truncated_pair_is_to_be_deleted_first(pair: Path) -> None:
    """Tokenizing again finds it complete by its manifest, and ends with this error."""
    truncate(bin_path, 21)(pair)
    with pytest.raises(DataError, match="or delete the pair and its manifest and make them again"):
        check_indexed(pair)


def test_a_pair_of_only_empty_sequences_is_refused(tmp_path: Path) -> None:
    prefix = write(tmp_path / "tokens", [[], []], np.dtype(np.uint16))
    with pytest.raises(DataError, match="all 2 sequences are empty"):
        check_indexed(prefix)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A pair, and what is in its index before any damage."""
    prefix = write(tmp_path_factory.mktemp("pair") / "tokens", DOCUMENTS, np.dtype(np.uint16))
    return prefix, idx_path(prefix).read_bytes()


@settings(max_examples=300)
@given(offset=st.integers(0, 101), content=st.binary(min_size=1, max_size=8), cut=st.integers(0, 110))
def test_random_damage_is_refused_or_harmless(
    intact: tuple[Path, bytes], offset: int, content: bytes, cut: int
) -> None:
    """In whatever passes the check, every sequence and every document can be read."""
    pair, index = intact
    idx_path(pair).write_bytes((index[:offset] + content + index[offset + len(content) :])[:cut])
    try:
        header = check_indexed(pair)
    except DataError:
        return
    index, tokens = idx_path(pair).read_bytes(), bin_path(pair).read_bytes()
    lengths = np.frombuffer(index, np.int32, header.sequences, 34)
    pointers = np.frombuffer(index, np.int64, header.sequences, 34 + lengths.nbytes)
    starts = np.frombuffer(index, np.int64, header.documents + 1, 34 + lengths.nbytes + pointers.nbytes)
    size = header.dtype.itemsize
    read = [tokens[pointer:][: length * size] for pointer, length in zip(pointers, lengths, strict=True)]
    assert sum(map(len, read)) == header.tokens * size
    assert starts.tolist() == sorted(starts)
    assert (starts[0], starts[-1]) == (0, header.sequences)


def test_counts_and_entropy_match_known_tokens(tmp_path: Path) -> None:
    prefix = write(tmp_path / "tokens", [[0, 1], [2, 3] * 2, [0, 1]], np.dtype(np.uint16))
    assert token_counts(prefix, 6).tolist() == [2, 2, 2, 2, 0, 0]
    assert pair_statistics(prefix, None).unigram_entropy_nats == pytest.approx(np.log(4), rel=1e-12)
    with pytest.raises(DataError, match=r"tokens\.bin: byte 6: token 3 lies outside the tokenizer's vocabulary of 3"):
        token_counts(prefix, 3)
