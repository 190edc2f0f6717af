"""Prepares a corpus: tokenizes a source of text once, and verifies the tokens on disk.

The folder `corpus-KEY` holds a corpus: `tokens.bin`, `tokens.idx`, the tokenizer, the byte length of every token, and
`tokens.manifest.json`. KEY is a checksum of everything that decides the content. The manifest is written last: a
folder without one is incomplete, and the next call for the same corpus resumes from its finished parts.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import (
    disk_errors_explained,
    exclusive_lock,
    file_identity,
    remembered_sha256,
    write_file,
)
from efficientbench.data_tools.tokenizer.tokenizer import (
    TRAINING_RULES,
    TextTokenizer,
    load_tokenizer,
    train_tokenizer,
)
from efficientbench.data_tools.tokenizer.tokenizer_files import folder_checksum, tokenizer_folder
from efficientbench.data_tools.tokenizer.tokenizer_training import documents_in_turn
from efficientbench.data_tools.tokenizing.documents import TEXT_KEY
from efficientbench.data_tools.tokenizing.embedded import (
    as_jsonl,
    embedded_checksum,
    embedded_documents,
)
from efficientbench.data_tools.tokenizing.inputs import cut_into_parts, find_inputs, is_plain_text
from efficientbench.data_tools.tokenizing.parallel import CORES
from efficientbench.data_tools.tokenizing.tokenize import tokenize_files
from efficientbench.data_tools.tokens.indexed import bin_path, check_indexed, check_present, idx_path
from efficientbench.data_tools.tokens.indexed_documents import token_counts
from efficientbench.data_tools.tokens.intact import verify_before_run
from efficientbench.data_tools.tokens.manifest import (
    FORMAT_VERSION,
    Corpus,
    load_corpus,
    manifest_path,
    pair_checksums,
    pair_fingerprint,
    save_corpus,
)

_PREFIX = "tokens"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _TextSource:
    """Text that can be read more than once."""

    label: str
    checksum: str
    documents: Callable[[], Iterable[str]]
    """The documents to train a tokenizer on, in an order in which the first ones represent all."""
    files: list[Path] | None
    """The files to tokenize; None for the embedded sample, which must be written to a file first."""


def prepare_corpus(
    source: Path | None,
    tokenizer: str | None,
    folder: Path,
    embedded_vocab_size: int,
    on_part: Callable[[int, int], None] = lambda done, parts: None,
) -> Corpus:
    """Return the corpus of `source`; make it below `folder` unless it exists there.

    Processes that call this at once with the same folder wait for the one that makes the corpus, and share it.

    Args:
        source: A file, folder or glob of parquet, JSONL and text; or a tokenized pair (its prefix, `.bin` or `.idx`),
            which is not copied; None for the embedded sample.
        tokenizer: The tokenizer's folder or name on the hub; None to train one of at most `embedded_vocab_size` tokens
            on the source. A tokenized pair needs it only if it has no manifest.
        folder: The cache of prepared corpora.
        embedded_vocab_size: The vocabulary size of a tokenizer that is trained.
        on_part: Called with the number of tokenized parts and the number of all parts.

    Raises:
        DataError: the source, the tokenizer or the folder is not usable.
    """
    with disk_errors_explained(folder):
        prefix = pair_prefix(source)
        if prefix is not None:
            return _adopt_pair(prefix, tokenizer, folder)
        text = _embedded_source() if source is None else _file_source(source, folder)
        if tokenizer is None:
            tokenizer_key = f"{TRAINING_RULES} {embedded_vocab_size}"
        else:
            tokenizer_key = folder_checksum(tokenizer_folder(tokenizer))
        return _make_once(
            folder,
            f"{text.checksum} {tokenizer_key}",
            text.label,
            lambda target: _tokenize(text, tokenizer, embedded_vocab_size, target, on_part),
        )


def most_tokens(source: Path) -> int | None:
    """Return the most tokens that a source can have, one for each byte of its text; None where they are not known.

    They are not for compressed text and for a tokenized pair. `source`: as of `prepare_corpus`.

    Raises:
        DataError: the source is missing, empty or of an unknown kind.
    """
    prefix = pair_prefix(source)
    if prefix is not None:
        check_present(prefix)
        return None
    paths = _inputs_of(source)
    return sum(path.stat().st_size for path in paths) if all(map(is_plain_text, paths)) else None


def _inputs_of(source: Path) -> list[Path]:
    paths = find_inputs([source])
    if not any(path.stat().st_size for path in paths):
        raise DataError(f"{source} is empty")
    return paths


def _tokenize(
    text: _TextSource,
    tokenizer: str | None,
    embedded_vocab_size: int,
    target: Path,
    on_part: Callable[[int, int], None],
) -> None:
    """Make the corpus of `text` in the folder `target`."""
    files = text.files
    if files is None:
        files = [target / "sample.jsonl"]
        write_file(files[0], as_jsonl(text.documents(), TEXT_KEY))
    trained = target / "trained"
    if tokenizer is None and not trained.is_dir():
        train_tokenizer(text.documents(), embedded_vocab_size, trained)
    tokenize_files(files, target / _PREFIX, tokenizer or trained, workers=CORES, source=text.label, on_part=on_part)
    shutil.rmtree(trained, ignore_errors=True)  # a copy lies beside the tokens


def _embedded_source() -> _TextSource:
    label = f"embedded sample (Python {sys.version_info.major}.{sys.version_info.minor} documentation)"
    # Cached for training and tokenizing: parsing the library costs more than either.
    return _TextSource(label, embedded_checksum(), functools.cache(lambda: list(embedded_documents())), None)


def _file_source(source: Path, folder: Path) -> _TextSource:
    paths = _inputs_of(source)

    def documents() -> Iterable[str]:
        drawn = documents_in_turn(cut_into_parts(paths, TEXT_KEY), TEXT_KEY)
        return (document for document in drawn if isinstance(document, str))

    # The suffix decides how a file is read: the same bytes may be JSONL or plain text.
    kinds = (path.name.partition(".")[2] for path in paths)
    key = " ".join(f"{kind} {digest}" for kind, digest in zip(kinds, remembered_sha256(paths, folder), strict=True))
    return _TextSource(str(source), key, documents, paths)


def pair_prefix(source: Path | None) -> Path | None:
    """Return the prefix of the `.bin/.idx` pair that `source` names, by its prefix or a file; None if it names none."""
    # A folder such as `.` or `/` has no name that a suffix could follow.
    if source is None or not source.name:
        return None
    if source.suffix in (".bin", ".idx"):
        return source.with_suffix("")
    is_prefix = not source.is_file() and (idx_path(source).is_file() or bin_path(source).is_file())
    return source if is_prefix else None


def _adopt_pair(prefix: Path, tokenizer: str | None, folder: Path) -> Corpus:
    """Return the corpus of a tokenized pair, from its manifest, else from the pair and the tokenizer."""
    if manifest_path(prefix).is_file():
        corpus = _verified_corpus(manifest_path(prefix), folder)
        if tokenizer is not None and load_tokenizer(tokenizer).fingerprint != corpus.tokenizer_fingerprint:
            raise DataError(
                f"{prefix} was made with another tokenizer than {tokenizer}: leave the tokenizer out, or give the "
                f"right one (a copy lies in {corpus.tokenizer_folder})"
            )
        return corpus
    check_present(prefix)
    if tokenizer is None:
        check_indexed(prefix)  # no tokenizer would help a damaged index
        raise DataError(
            f"{prefix}: no {manifest_path(prefix).name} lies beside this tokenized corpus, so it is not known what "
            "its tokens mean: give the tokenizer that made it"
        )
    # A checksum of a large pair would take too long at every call.
    state = " ".join(file_identity(path) for path in (bin_path(prefix), idx_path(prefix)))
    key = f"{state} {folder_checksum(tokenizer_folder(tokenizer))}"

    def make(target: Path) -> None:
        loaded = load_tokenizer(tokenizer)
        loaded.save(target / "tokenizer")
        _write_manifest(prefix, loaded, target)

    return _make_once(folder, key, str(prefix), make)


def _make_once(folder: Path, key: str, label: str, make: Callable[[Path], None]) -> Corpus:
    """Return the corpus of `key` in `folder`; if it is not complete, call `make` with the corpus's folder."""
    key = hashlib.sha256(f"{FORMAT_VERSION} {key}".encode()).hexdigest()[:16]
    target = folder / f"corpus-{key}"
    manifest = manifest_path(target / _PREFIX)
    if (corpus := _complete_corpus(manifest, folder)) is None:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder / f"{target.name}.lock"):
            # Another process may have made the corpus while this one waited.
            if (corpus := _complete_corpus(manifest, folder)) is None:
                logger.info("preparing %s in %s", label, target)
                if manifest.exists():  # the corpus was damaged since
                    shutil.rmtree(target)
                target.mkdir(exist_ok=True)
                make(target)
                corpus = _verified_corpus(manifest, folder)
    return replace(corpus, source=label)  # the same text may have been prepared from a file of another name


def _complete_corpus(manifest: Path, folder: Path) -> Corpus | None:
    if not manifest.is_file():
        return None
    try:
        return _verified_corpus(manifest, folder)
    except DataError as error:
        logger.warning("a prepared corpus is damaged and will be made again: %s", error)
        return None


def _verified_corpus(manifest: Path, folder: Path) -> Corpus:
    """Load the manifest's corpus, and verify its files; `folder` remembers the files that were verified before."""
    corpus = load_corpus(manifest)
    verify_before_run(corpus, folder)
    return corpus


def _write_manifest(prefix: Path, tokenizer: TextTokenizer, target: Path) -> None:
    """Check a pair without manifest, and write its token lengths and a manifest into `target`."""
    header = check_indexed(prefix)
    counts = token_counts(prefix, tokenizer.vocab_size)
    lengths = tokenizer.token_bytes()
    utf8_bytes = None if lengths is None else int(counts @ lengths.astype(np.int64))
    pair = pair_checksums(prefix)
    save_corpus(
        Corpus(
            prefix=prefix,
            vocab_size=tokenizer.vocab_size,
            eod_id=tokenizer.eod_id,
            tokens=header.tokens,
            documents=header.documents,
            utf8_bytes=utf8_bytes,
            token_bytes_path=tokenizer.save_token_bytes(target / "token_bytes.npy"),
            tokenizer_folder=target / "tokenizer",
            tokenizer_fingerprint=tokenizer.fingerprint,
            fingerprint=pair_fingerprint(prefix, pair),
            source=str(prefix),
            manifest=manifest_path(target / _PREFIX),
        ),
        pair,
    )
