"""From a source of text to a checked, tokenized corpus on disk, made once.

A corpus lies in a folder `corpus-KEY`: `tokens.bin`, `tokens.idx`, the tokenizer, the byte length of every token, and
`tokens.manifest.json`. KEY is a checksum of all that decides its content. The manifest is written last: a folder
without one is not finished, and whoever asks for the same corpus again goes on from what is there.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from efficientbench.data_tools.documents import TEXT_KEY
from efficientbench.data_tools.embedded import embedded_checksum, embedded_documents
from efficientbench.data_tools.errors import DataError
from efficientbench.data_tools.files import exclusive_lock, file_checksums, remembered_sha256, write_file
from efficientbench.data_tools.indexed import bin_path, check_indexed, idx_path
from efficientbench.data_tools.inputs import cut_into_parts, find_inputs
from efficientbench.data_tools.manifest import (
    FORMAT_VERSION,
    Corpus,
    load_corpus,
    manifest_path,
    pair_fingerprint,
    save_corpus,
)
from efficientbench.data_tools.statistics import token_counts
from efficientbench.data_tools.tokenize import tokenize_files
from efficientbench.data_tools.tokenizer import (
    TRAINING_RULES,
    TextTokenizer,
    folder_checksum,
    load_tokenizer,
    tokenizer_folder,
    train_tokenizer,
)
from efficientbench.data_tools.tokenizer_training import documents_in_turn

_PREFIX = "tokens"

__all__ = ["Corpus", "load_corpus", "prepare_corpus"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _TextSource:
    """Text that can be read more than once.

    documents: those that a tokenizer is trained on, in an order that makes the first ones stand for all.
    files: what is tokenized; None for the embedded sample, which is first written to a file.
    """

    label: str
    checksum: str
    documents: Callable[[], Iterable[str]]
    files: list[Path] | None


def prepare_corpus(
    source: Path | None,
    tokenizer: str | None,
    folder: Path,
    embedded_vocab_size: int,
    on_part: Callable[[int, int], None] = lambda done, parts: None,
) -> Corpus:
    """The corpus of `source`, made under `folder` unless it lies there already.

    source: a file, folder or glob of parquet, JSONL and text; or an already tokenized pair (its prefix, `.bin` or
        `.idx`), used where it lies; None for the embedded sample.
    tokenizer: a folder or a name on the hub; None for one of at most `embedded_vocab_size` tokens that is trained on
        the source. A tokenized pair needs it only where no manifest lies beside it.
    on_part: is told how many parts of the text are tokenized, of how many.

    Processes that call this at once with the same folder wait for the one that makes the corpus, and share it.

    Raises:
        DataError: whatever about source, tokenizer or folder keeps the corpus from being made.
    """
    try:
        prefix = _pair_prefix(source)
        if prefix is not None:
            return _adopt_pair(prefix, tokenizer, folder)
        text = _embedded_source() if source is None else _file_source(source, folder)
        if tokenizer is None:
            tokenizer_key = f"{TRAINING_RULES} {embedded_vocab_size}"
        else:
            tokenizer_key = folder_checksum(tokenizer_folder(tokenizer))
    except OSError as error:
        raise _disk_error(error, folder) from None

    def make(target: Path) -> None:
        files, chosen = text.files, tokenizer
        if files is None:
            files = [target / "sample.jsonl"]
            write_file(files[0], b"".join(json.dumps({TEXT_KEY: each}).encode() + b"\n" for each in text.documents()))
        if chosen is None:
            chosen = str(target / "trained")
            if not Path(chosen).is_dir():
                train_tokenizer(text.documents(), embedded_vocab_size, Path(chosen))
        workers = len(os.sched_getaffinity(0))
        tokenize_files(files, target / _PREFIX, chosen, workers=workers, source=text.label, on_part=on_part)
        shutil.rmtree(target / "trained", ignore_errors=True)  # a copy lies beside the tokens

    return _once(folder, f"{text.checksum} {tokenizer_key}", text.label, make)


def _embedded_source() -> _TextSource:
    label = f"embedded sample (Python {sys.version_info.major}.{sys.version_info.minor} documentation)"
    # Read once for training and tokenizing both: parsing the library costs more than either.
    return _TextSource(label, embedded_checksum(), functools.cache(lambda: list(embedded_documents())), None)


def _file_source(source: Path, folder: Path) -> _TextSource:
    paths = find_inputs([source])
    if not any(path.stat().st_size for path in paths):
        raise DataError(f"{source} is empty")

    def documents() -> Iterable[str]:
        drawn = documents_in_turn(cut_into_parts(paths, TEXT_KEY), TEXT_KEY)
        return (document for document in drawn if isinstance(document, str))

    # How a file is read is part of what it says: the same bytes may be JSONL or plain text.
    kinds = (path.name.partition(".")[2] for path in paths)
    key = " ".join(f"{kind} {digest}" for kind, digest in zip(kinds, remembered_sha256(paths, folder), strict=True))
    return _TextSource(str(source), key, documents, paths)


def _pair_prefix(source: Path | None) -> Path | None:
    """The prefix, where `source` names a `.bin/.idx` pair in any of the three ways."""
    # A folder as `.` or `/` has no name that a suffix could follow.
    if source is None or not source.name:
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

    def make(target: Path) -> None:
        loaded = load_tokenizer(tokenizer)
        loaded.save(target / "tokenizer")
        _describe(prefix, loaded, target)

    return _once(folder, key, str(prefix), make)


def _once(folder: Path, key: str, label: str, make: Callable[[Path], None]) -> Corpus:
    """The corpus in `folder` under `key`; `make(its folder)` makes it, or goes on with it, if it is not there yet."""
    key = hashlib.sha256(f"{FORMAT_VERSION} {key}".encode()).hexdigest()[:16]
    target = folder / f"corpus-{key}"
    manifest = manifest_path(target / _PREFIX)
    try:
        if (corpus := _finished(manifest)) is None:
            folder.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(folder / f"{target.name}.lock"):
                if (corpus := _finished(manifest)) is None:
                    logger.info("preparing %s in %s", label, target)
                    if manifest.exists():  # of a corpus that was damaged since
                        shutil.rmtree(target)
                    target.mkdir(exist_ok=True)
                    make(target)
                    corpus = load_corpus(manifest)
    except OSError as error:
        raise _disk_error(error, folder) from None
    return replace(corpus, source=label)  # the same text may have been prepared from a file of another name


def _finished(manifest: Path) -> Corpus | None:
    if not manifest.is_file():
        return None
    try:
        return _checked(manifest)
    except DataError as error:
        logger.warning("a prepared corpus is damaged and will be made again: %s", error)
        return None


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


def _describe(prefix: Path, tokenizer: TextTokenizer, target: Path) -> None:
    """Check a foreign pair whole, and write its token lengths and its manifest into `target`, beside the tokenizer."""
    header = check_indexed(prefix)
    counts = token_counts(prefix, tokenizer.vocab_size)
    lengths = tokenizer.token_bytes()
    lengths_path = utf8_bytes = None
    if lengths is not None:
        lengths_path = target / "token_bytes.npy"
        buffer = io.BytesIO()
        np.save(buffer, lengths)
        write_file(lengths_path, buffer.getvalue())
        utf8_bytes = int(counts @ lengths.astype(np.int64))
    checksums = {"idx": file_checksums(idx_path(prefix)), "bin": file_checksums(bin_path(prefix))}
    corpus = Corpus(
        prefix=prefix,
        vocab_size=tokenizer.vocab_size,
        eod_id=tokenizer.eod_id,
        tokens=header.tokens,
        documents=header.documents,
        utf8_bytes=utf8_bytes,
        token_bytes_path=lengths_path,
        tokenizer_folder=target / "tokenizer",
        tokenizer_fingerprint=tokenizer.fingerprint,
        fingerprint=pair_fingerprint(checksums),
        source=str(prefix),
        manifest=manifest_path(target / _PREFIX),
    )
    save_corpus(corpus)


def _disk_error(error: OSError, folder: Path) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free_mb = shutil.disk_usage(existing).free / 1e6
        return DataError(
            f"no space left in {folder} ({free_mb:,.1f} MB are free): free some, or choose another folder; what is "
            "finished is kept"
        )
    return DataError(
        f"the corpus cannot be prepared in {folder}: {error.filename or folder}: {error.strerror or error}"
    )
