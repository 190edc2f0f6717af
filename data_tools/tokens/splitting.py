"""Splits the documents of tokenized corpora into training, validation and test by a hash of their tokens.

The order of the documents has no effect. A text that occurs more than once, in one corpus or in several, goes to
training, so that no validation document is in the training text too.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import exclusive_lock
from efficientbench.data_tools.tokens.cached_files import cached_file, is_intact
from efficientbench.data_tools.tokens.indexed import bin_path, document_hash, hashes_path, idx_path
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments, check_tokens
from efficientbench.data_tools.tokens.intact import WHOLE_BYTES
from efficientbench.data_tools.tokens.manifest import load_checksums, manifest_path

SPLITS = "split"
"""The folder of hashes and splits below a run's `data.cache`."""
_RULES = "1"
"""The version of this file's rules; cached splits of another version are not used."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split:
    """The split of one corpus into document numbers."""

    training: np.ndarray
    """Training documents, int64, ascending."""
    validation: np.ndarray
    """Validation documents, int64, by ascending hash."""
    test: np.ndarray
    """Test documents, int64, by ascending hash."""
    duplicates: int
    """Documents that went to training instead of validation or test, since their text occurs more than once."""


def split_documents(prefixes: Sequence[Path], shares: Sequence[float], vocab_size: int, cache: Path) -> list[Split]:
    """Return the split of each corpus, and cache the splits; read the tokens once if a pair has no hashes beside it.

    In each corpus, the documents with the lowest hashes are for validation, the next ones for test, as many as their
    shares say; the rest is for training. Processes that call this at once wait for each other.

    Args:
        prefixes: the paths, without suffix, of the `.bin/.idx` pairs, which were checked before.
        shares: relative numbers of documents for training, validation and test.
        vocab_size: the vocabulary size of the corpora's tokenizer.
        cache: the folder for hashes and splits.

    Raises:
        DataError: a file is missing, or holds a token outside the vocabulary, or the cache cannot be written.
    """
    states = [f"{_state(prefix)} {vocab_size}" for prefix in prefixes]
    path = cache / f"split-{_key(_RULES, *states, *map(repr, map(float, shares)))}.npz"
    cache.mkdir(parents=True, exist_ok=True)
    # Verified outside the lock, so that the ranks of a machine can read the file at the same time.
    splits = _read(path, len(prefixes))
    if splits is None:
        with exclusive_lock(cache / "split.lock"):
            # Another process may have made the splits while this one waited.
            splits = _read(path, len(prefixes))
            if splits is None:
                pairs = zip(prefixes, states, strict=True)
                splits = _split([_hashes(prefix, state, vocab_size, cache) for prefix, state in pairs], shares)
                _write(path, splits)
    return splits


_PARTS = ("training", "validation", "test")


def _read(path: Path, count: int) -> list[Split] | None:
    """Return the splits of `count` corpora in a file; None if it is missing, or, with a warning, if it is not valid."""
    if not is_intact(path):
        return None
    try:
        # No pickle, which can run code: whoever can write to the cache can write the checksum too.
        with np.load(path, allow_pickle=False) as found:
            arrays = [[found[f"{part}{number}"] for part in _PARTS] for number in range(count)]
            duplicates = [int(each) for each in found["duplicates"]]
        if any(array.dtype != np.int64 or array.ndim != 1 for parts in arrays for array in parts):
            raise ValueError("it holds other arrays than numbers of documents")
        return [
            Split(training, validation, test, repeated)
            for (training, validation, test), repeated in zip(arrays, duplicates, strict=True)
        ]
    except Exception as error:  # a hostile file makes numpy's reader fail in many ways
        logger.warning("%s is no split (%s): it is not used", path, error)
        return None


def _write(path: Path, splits: Sequence[Split]) -> None:
    arrays = {f"{part}{number}": getattr(split, part) for number, split in enumerate(splits) for part in _PARTS}
    with cached_file(path) as stream:
        np.savez(stream, duplicates=np.array([split.duplicates for split in splits]), **arrays)


def _split(hashes: Sequence[np.ndarray], shares: Sequence[float]) -> list[Split]:
    known, places, counts = np.unique(np.concatenate(hashes), return_inverse=True, return_counts=True)
    once = np.split(counts[places] == 1, np.cumsum([len(each) for each in hashes])[:-1])
    del known, places
    return [_split_one(each, alone, shares) for each, alone in zip(hashes, once, strict=True)]


def _split_one(hashes: np.ndarray, alone: np.ndarray, shares: Sequence[float]) -> Split:
    """Split one corpus; `alone` marks the documents whose text occurs once."""
    ends = [round(len(hashes) * end / sum(shares)) for end in itertools.accumulate(shares)]
    wanted = ends[1] - ends[0], ends[2] - ends[1]
    order = np.argsort(hashes, kind="stable")
    candidates = order[alone[order]]
    validation, test = candidates[: wanted[0]], candidates[wanted[0] : sum(wanted)]
    rest = np.ones(len(hashes), dtype=bool)
    rest[candidates[: sum(wanted)]] = False
    # Count the duplicates whose hash would have put them into validation or test.
    last = hashes[candidates[: sum(wanted)][-1:]]
    duplicates = int(np.count_nonzero(~alone & (hashes < last))) if len(last) else int(np.count_nonzero(~alone))
    return Split(np.flatnonzero(rest), validation, test, duplicates)


def _hashes(prefix: Path, state: str, vocab_size: int, cache: Path) -> np.ndarray:
    """Return the `document_hash` of each document, uint64 [documents], after checking the tokens."""
    manifest, written = manifest_path(prefix), hashes_path(prefix)
    # The manifest's checksums, which a run verifies, prove that the hashes are of these tokens.
    beside = manifest.is_file() and written in load_checksums(manifest)
    path = cache / f"hashes-{_key(_RULES, state)}.bin"
    if not beside and is_intact(path):
        return np.fromfile(path, "<u8")
    # A start must not read terabytes: in a large pair, `BlockReader` checks the tokens that a run reads.
    if not beside or bin_path(prefix).stat().st_size <= WHOLE_BYTES:
        check_tokens(prefix, vocab_size)
    if beside:
        return np.fromfile(written, "<u8")
    documents = IndexedDocuments(prefix)
    logger.info("%s: reading %s documents once, to split them by their text", prefix, f"{len(documents):,}")
    with cached_file(path) as stream:
        stream.writelines(document_hash(documents[number].tobytes()) for number in range(len(documents)))
    return np.fromfile(path, "<u8")


def _state(prefix: Path) -> str:
    """Return a text that changes when one of the pair's files does."""
    try:
        stats = [path.stat() for path in (bin_path(prefix), idx_path(prefix))]
    except FileNotFoundError as error:
        raise DataError(f"{error.filename}: there is no such file") from None
    return f"{prefix.absolute()} " + " ".join(f"{each.st_size} {each.st_mtime_ns}" for each in stats)


def _key(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
