"""From a source of text to a checked, tokenized corpus on disk, made once.

A finished corpus is a folder `corpus-KEY`: `tokens.bin`, `tokens.idx`, `tokens.manifest.json`, the tokenizer, and the
byte length of every token. KEY is a checksum of all that decides its content. The folder is written beside, as
`corpus-KEY.partial`, and renamed, so whatever has its name is complete.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_tools.documents import read_documents
from data_tools.embedded import embedded_checksum, embedded_documents
from data_tools.errors import DataError
from data_tools.files import checksum, exclusive_lock, file_checksums, write_file
from data_tools.indexed import IndexedWriter, bin_path, check_indexed, idx_path, token_dtype
from data_tools.manifest import FORMAT_VERSION, Corpus, load_corpus, manifest_path, pair_fingerprint, save_corpus
from data_tools.statistics import token_counts
from data_tools.tokenizer import (
    TRAINING_RULES,
    TextTokenizer,
    folder_checksum,
    load_tokenizer,
    tokenizer_folder,
    train_tokenizer,
)

_BATCH_CHARACTERS = 1 << 22
_PREFIX = "tokens"

__all__ = ["Corpus", "load_corpus", "prepare_corpus"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _TextSource:
    """Text that can be read more than once; `size_bytes` bounds the text's length from above or nearly so."""

    label: str
    checksum: str
    size_bytes: int
    documents: Callable[[], Iterable[str]]


def prepare_corpus(source: Path | None, tokenizer: str | None, folder: Path, embedded_vocab_size: int) -> Corpus:
    """The corpus of `source`, made under `folder` unless it lies there already.

    source: a JSONL or text file; or an already tokenized pair (its prefix, `.bin` or `.idx`), used where it lies;
        None for the embedded sample.
    tokenizer: a folder or a name on the hub; None for one of at most `embedded_vocab_size` tokens that is trained on
        the source. A tokenized pair needs it only where no manifest lies beside it.

    Processes that call this at once with the same folder wait for the one that makes the corpus, and share it.

    Raises:
        DataError: whatever about source, tokenizer or folder keeps the corpus from being made.
    """
    prefix = _pair_prefix(source)
    if prefix is not None:
        return _adopt_pair(prefix, tokenizer, folder)
    text = _text_source(source)
    if tokenizer is None:
        tokenizer_key = f"{TRAINING_RULES} {embedded_vocab_size}"
    else:
        tokenizer_key = folder_checksum(tokenizer_folder(tokenizer))

    def make(partial: Path) -> None:
        if tokenizer is None:
            train_tokenizer(text.documents(), embedded_vocab_size, partial / "tokenizer")
            _tokenize(text, load_tokenizer(partial / "tokenizer"), partial)
        else:
            loaded = load_tokenizer(tokenizer)
            loaded.save(partial / "tokenizer")
            _tokenize(text, loaded, partial)

    return _once(folder, f"{text.checksum} {tokenizer_key}", text.label, text.size_bytes, make)


def _text_source(source: Path | None) -> _TextSource:
    if source is None:
        label = f"embedded sample (Python {sys.version_info.major}.{sys.version_info.minor} documentation)"
        # Read once for training and tokenizing both: parsing the library costs more than either.
        return _TextSource(label, embedded_checksum(), 2_000_000, functools.cache(lambda: list(embedded_documents())))
    read_documents(source)  # refuses what is no file of documents before it is read for its checksum
    try:
        return _TextSource(str(source), checksum(source), source.stat().st_size, lambda: read_documents(source))
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror}") from None


def _pair_prefix(source: Path | None) -> Path | None:
    """The prefix, where `source` names a `.bin/.idx` pair in any of the three ways."""
    if source is None:
        return None
    if source.suffix in (".bin", ".idx"):
        return source.with_suffix("")
    is_prefix = not source.is_file() and (idx_path(source).is_file() or bin_path(source).is_file())
    return source if is_prefix else None


def _adopt_pair(prefix: Path, tokenizer: str | None, folder: Path) -> Corpus:
    """The corpus of an already tokenized pair: from its manifest, else from the pair and the tokenizer given."""
    check_indexed(prefix)
    if manifest_path(prefix).is_file():
        corpus = _checked(manifest_path(prefix))
        if tokenizer is not None and load_tokenizer(tokenizer).fingerprint != corpus.tokenizer_fingerprint:
            raise DataError(
                f"{prefix} was made with another tokenizer than {tokenizer}: leave the tokenizer out, or give the "
                f"right one (a copy lies in {corpus.tokenizer_folder})"
            )
        return corpus
    if tokenizer is None:
        raise DataError(
            f"{prefix}: no {manifest_path(prefix).name} lies beside this tokenized corpus, so it is not known what "
            "its tokens mean: give the tokenizer that made it"
        )
    # Reading all of a large pair for a checksum at every call would take too long.
    stats = [path.stat() for path in (bin_path(prefix), idx_path(prefix))]
    state = " ".join(f"{stat.st_size} {stat.st_mtime_ns}" for stat in stats)
    key = f"{prefix.absolute()} {state} {folder_checksum(tokenizer_folder(tokenizer))}"

    def make(partial: Path) -> None:
        loaded = load_tokenizer(tokenizer)
        loaded.save(partial / "tokenizer")
        _describe(prefix, loaded, str(prefix), None, partial)

    return _once(folder, key, str(prefix), 0, make)


def _once(folder: Path, key: str, label: str, text_bytes: int, make: Callable[[Path], None]) -> Corpus:
    """The corpus in `folder` under `key`; made there by `make(partial folder)` if it is not there yet."""
    key = hashlib.sha256(f"{FORMAT_VERSION} {key}".encode()).hexdigest()[:16]
    target = folder / f"corpus-{key}"
    manifest = manifest_path(target / _PREFIX)
    try:
        if (corpus := _finished(manifest)) is None:
            folder.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(folder / f"{target.name}.lock"):
                if (corpus := _finished(manifest)) is None:
                    logger.info("preparing %s in %s", label, target)
                    _make_folder(target, make)
                    corpus = load_corpus(manifest)
    except OSError as error:
        raise _disk_error(error, folder, text_bytes) from None
    return replace(corpus, source=label)  # the same text may have been prepared from a file of another name


def _finished(manifest: Path) -> Corpus | None:
    if not manifest.is_file():
        return None
    try:
        return _checked(manifest)
    except DataError as error:
        logger.warning("a prepared corpus is damaged and will be made again: %s", error)
        return None


def _make_folder(target: Path, make: Callable[[Path], None]) -> None:
    """Let `make` fill a folder beside `target`, and give it its name."""
    partial = target.with_name(target.name + ".partial")
    for left_over in (partial, target):  # by a killed process, or damaged since
        shutil.rmtree(left_over, ignore_errors=True)
    partial.mkdir()
    try:
        make(partial)
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _checked(manifest: Path) -> Corpus:
    """The manifest's corpus, after a look at whether its pair is still the one that it describes."""
    corpus = load_corpus(manifest)
    header = check_indexed(corpus.prefix)
    if (header.tokens, header.documents) != (corpus.tokens, corpus.documents):
        raise DataError(
            f"{corpus.prefix} holds {header.documents:,} documents of {header.tokens:,} tokens, but {manifest} says "
            f"{corpus.documents:,} of {corpus.tokens:,}: one of them was replaced; prepare the corpus again"
        )
    return corpus


def _tokenize(text: _TextSource, tokenizer: TextTokenizer, partial: Path) -> None:
    utf8_bytes = 0
    with IndexedWriter(partial / _PREFIX, token_dtype(tokenizer.vocab_size)) as writer:
        for batch in _batches(text.documents()):
            utf8_bytes += sum(len(document.encode()) for document in batch)
            for ids in tokenizer.encode_batch(batch):
                writer.add([*ids, tokenizer.eod_id])
    _describe(partial / _PREFIX, tokenizer, text.label, utf8_bytes, partial)


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _describe(prefix: Path, tokenizer: TextTokenizer, label: str, utf8_bytes: int | None, partial: Path) -> None:
    """Check a pair whole, and write its token lengths and its manifest into `partial`, beside the tokenizer."""
    header = check_indexed(prefix)
    counts = token_counts(prefix, tokenizer.vocab_size)
    lengths = tokenizer.token_bytes()
    lengths_path = None
    if lengths is not None:
        lengths_path = partial / "token_bytes.npy"
        buffer = io.BytesIO()
        np.save(buffer, lengths)
        write_file(lengths_path, buffer.getvalue())
        if utf8_bytes is None:
            utf8_bytes = int(counts @ lengths.astype(np.int64))
    corpus = Corpus(
        prefix=prefix,
        vocab_size=tokenizer.vocab_size,
        eod_id=tokenizer.eod_id,
        tokens=header.tokens,
        documents=header.documents,
        utf8_bytes=utf8_bytes,
        token_bytes_path=lengths_path,
        tokenizer_folder=partial / "tokenizer",
        tokenizer_fingerprint=tokenizer.fingerprint,
        fingerprint=pair_fingerprint(
            {"idx": file_checksums(idx_path(prefix)), "bin": file_checksums(bin_path(prefix))}
        ),
        source=label,
        manifest=manifest_path(partial / _PREFIX),
    )
    save_corpus(corpus)


def _disk_error(error: OSError, folder: Path, text_bytes: int) -> DataError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return DataError(f"the corpus cannot be prepared in {folder}: {error.filename or folder}: {error.strerror}")
    # Three bytes of text a token, and four bytes a token on disk, leave a margin for the tokenizer beside it.
    needed_mb = max(1, round(text_bytes * 4 / 3 / 1e6))
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_mb = shutil.disk_usage(existing).free / 1e6
    return DataError(
        f"no space left in {folder}: about {needed_mb:,} MB are needed, {free_mb:,.1f} MB are free; free some, or "
        "choose another folder"
    )
