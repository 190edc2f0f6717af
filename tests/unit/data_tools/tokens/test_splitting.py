"""Which documents are for validation: chosen by their text, whatever their order, and never trained on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.cells import write_tokens

from efficientbench.basics.errors import DataError
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.data_tools.tokens import splitting
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.splitting import Split, split_documents

Text = tuple[int, ...]


def documents(count: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 500, random.integers(2, 40)) for _ in range(count)]


def texts(prefix: Path, numbers: np.ndarray) -> list[Text]:
    opened = IndexedDocuments(prefix)
    return [tuple(opened[int(number)].tolist()) for number in numbers]


def split_of(folder: Path, *corpora: Sequence[np.ndarray], shares: Sequence[float] = (90, 10, 0)) -> list[Split]:
    folder.mkdir()
    for number, corpus in enumerate(corpora):
        write_tokens(folder / str(number), corpus)
    return split_documents([folder / str(number) for number in range(len(corpora))], shares, 500, folder / "cache")


def test_a_document_is_split_by_its_text_not_by_its_order(tmp_path: Path) -> None:
    there = documents(200)
    elsewhere = [there[number] for number in np.random.default_rng(1).permutation(200)]
    (one,), (other,) = split_of(tmp_path / "one", there), split_of(tmp_path / "other", elsewhere)
    assert len(one.validation) == 20
    chosen = texts(tmp_path / "one" / "0", one.validation)
    assert chosen == texts(tmp_path / "other" / "0", other.validation)
    # A validation text stays one when the corpus grows, as long as the share has room for it.
    (larger,) = split_of(tmp_path / "larger", [*documents(200, seed=2), *there])
    assert len(set(chosen) & set(texts(tmp_path / "larger" / "0", larger.validation))) >= 12


def test_parts_cover_all_documents_without_overlap(tmp_path: Path) -> None:
    (split,) = split_of(tmp_path / "text", documents(400), shares=(8, 1, 1))
    assert [len(part) for part in (split.training, split.validation, split.test)] == [320, 40, 40]
    assert sorted(np.concatenate([split.training, split.validation, split.test]).tolist()) == list(range(400))
    assert split.training.tolist() == sorted(split.training.tolist())
    assert split.duplicates == 0


def test_repeated_texts_are_trained_on_and_counted(tmp_path: Path) -> None:
    own, repeated = documents(100), documents(60, seed=3)
    first, second = [*own, *repeated[:40], *repeated[:40]], [*documents(80, seed=4), *repeated[40:], own[0]]
    splits = split_of(tmp_path / "text", first, [*second, *repeated[40:]], shares=(50, 50, 0))
    prefixes = [tmp_path / "text" / str(number) for number in range(2)]
    validated = {
        text for prefix, split in zip(prefixes, splits, strict=True) for text in texts(prefix, split.validation)
    }
    trained = {text for prefix, split in zip(prefixes, splits, strict=True) for text in texts(prefix, split.training)}
    assert validated.isdisjoint(trained)
    assert validated.isdisjoint({tuple(text.tolist()) for text in [*repeated, own[0]]})
    # Half of the first source's 180 documents, of which 99 have a text of their own.
    assert len(splits[0].validation) == 90
    assert splits[0].duplicates > 0
    sizes = [len(IndexedDocuments(prefix)) for prefix in prefixes]
    assert [len(split.training) + len(split.validation) for split in splits] == sizes


def test_text_of_repeats_only_leaves_no_validation_part(tmp_path: Path) -> None:
    (split,) = split_of(tmp_path / "text", [np.arange(9)] * 50)
    assert (len(split.validation), split.duplicates, len(split.training)) == (0, 50, 50)


def test_splitting_reads_tokens_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (split,) = split_of(tmp_path / "text", documents(100))

    def read(prefix: Path) -> IndexedDocuments:
        raise AssertionError("the tokens were read again")

    with monkeypatch.context() as patched:
        patched.setattr(splitting, "IndexedDocuments", read)
        (again,) = split_documents([tmp_path / "text" / "0"], (90, 10, 0), 500, tmp_path / "text" / "cache")
        assert np.array_equal(again.validation, split.validation)
        # Another share needs the same hashes only.
        (more,) = split_documents([tmp_path / "text" / "0"], (80, 20, 0), 500, tmp_path / "text" / "cache")
        assert set(split.validation.tolist()) <= set(more.validation.tolist())
    write_tokens(tmp_path / "text" / "0", documents(101, seed=5))
    (changed,) = split_documents([tmp_path / "text" / "0"], (90, 10, 0), 500, tmp_path / "text" / "cache")
    assert len(changed.training) + len(changed.validation) == 101


def test_a_damaged_split_cache_is_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (split,) = split_of(tmp_path / "text", documents(100))
    files = [path for path in (tmp_path / "text" / "cache").iterdir() if path.suffix in (".npz", ".bin")]
    assert len(files) == 2
    for spoil in (lambda content: content[:-9], lambda content: content[:200] + b"?" + content[201:]):
        for path in files:
            path.write_bytes(spoil(path.read_bytes()))
        (again,) = split_documents([tmp_path / "text" / "0"], (90, 10, 0), 500, tmp_path / "text" / "cache")
        assert np.array_equal(again.validation, split.validation)
        assert np.array_equal(again.training, split.training)
        assert all(f"{path} does not have the checksum" in caplog.text for path in files)
        caplog.clear()


class Opens:
    """A pickle that makes a file where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.open, (str(self.path), os.O_CREAT)


@pytest.mark.parametrize("kind", ["pickle", "objects", "real numbers", "other names", "no zip"])
def test_an_invalid_split_file_is_rebuilt_despite_a_right_checksum(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    (expected,) = split_of(tmp_path / "text", documents(100))
    cache, executed = tmp_path / "text" / "cache", tmp_path / "executed"
    (path,) = cache.glob("*.npz")
    good = dict(np.load(path))
    match kind:
        case "pickle":
            path.write_bytes(pickle.dumps(Opens(executed)))
        case "objects":
            np.savez(path, **{**good, "training0": np.array([Opens(executed)], dtype=object)})
        case "real numbers":
            np.savez(path, **{**good, "training0": good["training0"].astype(np.float32)})
        case "other names":
            np.savez(path, numbers=good["training0"])
        case "no zip":
            path.write_bytes(b"PK\x03\x04" + b"\0" * 60)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_name(f"{path.name}.sha256").write_text(f"{digest}  {path.name}\n")
    with caplog.at_level(logging.WARNING):
        (found,) = split_documents([tmp_path / "text" / "0"], (90, 10, 0), 500, cache)
    assert np.array_equal(found.training, expected.training)
    assert np.array_equal(found.validation, expected.validation)
    assert not executed.exists()
    assert any(message.startswith(f"{path} is no split (") for message in caplog.messages)
    assert dict(np.load(path)).keys() == good.keys()


def test_a_token_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    """It is named even where a manifest, which a run trusts, says otherwise."""
    write_tokens(tmp_path / "text", [np.arange(9), np.array([3, 600, 5])])
    with pytest.raises(DataError, match=r"text\.bin: byte 20: token 600 lies outside .* vocabulary of 500"):
        split_documents([tmp_path / "text"], (1, 1, 0), 500, tmp_path / "cache")


def test_a_tokenized_corpus_has_its_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Path) -> None:
    lines = (json.dumps({"text": f"document number {number}"}) for number in range(120))
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    corpus = tokenize_files([tmp_path / "text.jsonl"], tmp_path / "tokens", tokenizer)
    with monkeypatch.context() as patched:
        patched.delattr(splitting, "IndexedDocuments")
        (split,) = split_documents([corpus.prefix], (90, 10, 0), corpus.vocab_size, tmp_path / "cache")
    # As for a pair from elsewhere.
    corpus.manifest.unlink()
    (read,) = split_documents([corpus.prefix], (90, 10, 0), corpus.vocab_size, tmp_path / "other cache")
    assert np.array_equal(split.validation, read.validation)
    assert len(split.validation) == 12
