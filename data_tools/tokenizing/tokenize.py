"""Tokenizes files of text into a corpus: the same bytes from any number of processes, and after any number of kills.

Finished parts stay in the folder `PREFIX.parts` until all are made; a later run resumes from them. Then they are
merged into `PREFIX.bin` and `PREFIX.idx` (which takes twice their space for a moment). `PREFIX.manifest.json` is
written last: a pair that has one is complete.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import (
    beside,
    disk_errors_explained,
    exclusive_lock,
    file_checksums,
    remove_partial,
    sha256_of_each,
)
from efficientbench.data_tools.tokenizer.engine import Engine, choose_engine
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from efficientbench.data_tools.tokenizing.building import begin, corpus_of_parts, make_parts, parts_folder
from efficientbench.data_tools.tokenizing.documents import MAX_DOCUMENT_MB, TEXT_KEY, sample_texts
from efficientbench.data_tools.tokenizing.inputs import InputState, Part, cut_into_parts, find_inputs
from efficientbench.data_tools.tokenizing.parallel import Workers
from efficientbench.data_tools.tokenizing.parts import PartCounts, PartTokenizer, merge_pair, merge_rejects
from efficientbench.data_tools.tokenizing.plan import compare_plans
from efficientbench.data_tools.tokens.indexed import check_indexed, hashes_path, token_dtype
from efficientbench.data_tools.tokens.manifest import (
    Corpus,
    InputRecord,
    TokenizeRecord,
    load_corpus,
    load_tokenize_record,
    manifest_path,
    pair_checksums,
    save_corpus,
    versions,
)

MAX_REJECTS = 0.01
"""The default fraction of all documents that may be unusable."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Job:
    """One call of `tokenize_files`: the files that it reads, cut into parts, and the pair that it makes."""

    prefix: Path
    inputs: dict[Path, InputState]
    sha256: dict[Path, str]
    parts: list[Part]
    tokenizer: TextTokenizer
    text_key: str
    max_document_mb: int
    source: str

    @property
    def folder(self) -> Path:
        return parts_folder(self.prefix)

    @property
    def dtype(self) -> np.dtype:
        return token_dtype(self.tokenizer.vocab_size)

    def content(self) -> dict[str, Any]:
        """Return the plan: everything that decides the result."""
        return {
            "tokenizer": self.tokenizer.fingerprint,
            "text key": self.text_key,
            "--max-document-mb": self.max_document_mb,
            "inputs": [[str(path.absolute()), self.sha256[path]] for path in self.inputs],
            "cuts": [[str(part.path.absolute()), part.begin, part.end] for part in self.parts],
        }


def tokenize_files(
    inputs: Sequence[str | Path],
    prefix: Path,
    tokenizer: str | Path,
    *,
    text_key: str = TEXT_KEY,
    workers: int = 1,
    max_rejects: float = MAX_REJECTS,
    max_document_mb: int = MAX_DOCUMENT_MB,
    source: str | None = None,
    on_part: Callable[[int, int], None] = lambda done, parts: None,
) -> Corpus:
    """Tokenize files, folders and globs (parquet, JSONL, text) into the pair `prefix`, or resume an interrupted call.

    A complete pair of the same files is left unchanged.

    Args:
        inputs: Paths of files and folders, and globs.
        prefix: The pair's path without suffix; the tokenizer and the token lengths are written beside it.
        tokenizer: The tokenizer's folder, or its name on the hub. Its end-of-document token ends each document.
        text_key: The key (JSONL) or the column (parquet) of the text.
        workers: The number of processes that tokenize.
        max_rejects: The fraction of all documents that may be unusable; `PREFIX.rejects.jsonl` lists them.
        max_document_mb: The size limit of a JSONL row or a parquet text, in megabytes; larger ones are unusable.
        source: The origin of the text, for people; None for the names of its files.
        on_part: Called with the number of finished parts and the number of all parts.

    Raises:
        DataError: an input is not valid or changed since the parts were made; too many documents are unusable; the
            pair was made from other inputs; the disk is full; a worker process died.
    """
    if not prefix.name:
        raise DataError(f"{prefix} is a folder: give the path of the pair, without suffix")
    with disk_errors_explained(prefix.parent):
        paths = find_inputs(inputs)
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(beside(prefix, "lock")):
            states = {path: InputState.of(path) for path in paths}
            parts = cut_into_parts(paths, text_key)
            is_complete = manifest_path(prefix).exists()
            try:
                # Before the tokenizer is loaded, so that the workers start meanwhile.
                with Workers(0 if is_complete else min(workers, len(parts)), PartTokenizer) as processes:
                    names = ", ".join(map(str, paths[:3])) + (", ..." if len(paths) > 3 else "")
                    loaded = load_tokenizer(tokenizer)
                    job = _Job(
                        prefix, states, sha256_of_each(paths), parts, loaded, text_key, max_document_mb, source or names
                    )
                    if is_complete:
                        return _complete_corpus(job, max_rejects)
                    return _make_corpus(job, processes, max_rejects, on_part)
            finally:
                remove_partial(parts_folder(prefix))


def _make_corpus(job: _Job, workers: Workers, max_rejects: float, on_part: Callable[[int, int], None]) -> Corpus:
    begin(job.prefix, job.content(), job.tokenizer)
    sample = sample_texts(job.parts, job.text_key, job.max_document_mb)
    engine = choose_engine(job.tokenizer, job.folder / "tokenizer", sample)
    tokenize_part = PartTokenizer(
        job.folder, engine, job.tokenizer.eod_id, job.dtype, job.text_key, job.max_document_mb
    )
    tasks = [(part, job.inputs[part.path]) for part in job.parts]
    counts = make_parts(job.folder, tokenize_part, tasks, PartCounts, workers, on_part)
    for state in job.inputs.values():
        state.check_unchanged()
    return _merge(job, engine, counts, max_rejects)


def _complete_corpus(job: _Job, max_rejects: float) -> Corpus:
    """Return the complete corpus; raise a DataError if this job would make a different one."""
    corpus = load_corpus(manifest_path(job.prefix))
    record = load_tokenize_record(corpus.manifest)
    if record is None:
        raise DataError(f"{job.prefix} exists already, and was not made from files: choose another name")
    made: dict[str, Any] = {
        "tokenizer": corpus.tokenizer_fingerprint,
        "text key": record.text_key,
        "inputs": [[item.path, item.sha256] for item in record.inputs],
    }
    if record.max_document_mb is not None:
        made["--max-document-mb"] = record.max_document_mb
    compare_plans(made, job.content(), job.prefix, "choose another name for what is made now")
    check_indexed(job.prefix)
    rejected, documents = sum(record.rejected.values()), corpus.documents
    if rejected > max_rejects * (rejected + documents):
        raise DataError(
            f"{job.prefix} was made with {rejected:,} of {rejected + documents:,} documents left out, and now at most "
            f"{max_rejects:.2%} may be: mend them and choose another name, or allow more"
        )
    shutil.rmtree(job.folder, ignore_errors=True)
    logger.info("%s is complete already", job.prefix)
    return corpus


def _merge(job: _Job, engine: Engine, counts: list[PartCounts], max_rejects: float) -> Corpus:
    """Write the pair from its parts, and the files beside it, the manifest last."""
    records = _input_records(job, counts, max_rejects)
    merge_pair(job.folder, counts, job.prefix, job.dtype)
    hashes = hashes_path(job.prefix)
    checksums = {**pair_checksums(job.prefix), hashes: file_checksums(hashes)}
    documents, tokens = sum(count.documents for count in counts), sum(count.tokens for count in counts)
    utf8_bytes = sum(count.utf8_bytes for count in counts)
    corpus = corpus_of_parts(job.prefix, job.tokenizer, checksums, (documents, tokens, utf8_bytes), job.source)
    record = TokenizeRecord(
        inputs=records,
        text_key=job.text_key,
        engine=engine.name,
        engine_reason=engine.reason,
        bytes_per_token=utf8_bytes / tokens,
        rejected=dict(_total(count.rejected for count in counts)),
        special_token_strings=dict(_total(count.special_token_strings for count in counts)),
        versions=versions(),
        max_document_mb=job.max_document_mb,
    )
    save_corpus(corpus, checksums, record)
    shutil.rmtree(job.folder)
    return corpus


def _input_records(job: _Job, counts: list[PartCounts], max_rejects: float) -> list[InputRecord]:
    """List the unusable documents, and return each input's record; raise a DataError if too many are unusable."""
    rejects = beside(job.prefix, "rejects.jsonl")
    first = merge_rejects(job.folder, job.parts, counts, rejects)
    documents: Counter[Path] = Counter()
    rejected: Counter[Path] = Counter()
    for part, count in zip(job.parts, counts, strict=True):
        documents[part.path] += count.documents
        rejected[part.path] += sum(count.rejected.values())
    bad, good = rejected.total(), documents.total()
    if bad > max_rejects * (bad + good):
        raise DataError(
            f"{bad:,} of {bad + good:,} documents are not usable, and at most {max_rejects:.2%} may be (the first: "
            f"{first}); {rejects} lists them: mend them, or allow more"
        )
    if good == 0:
        names = ", ".join(map(str, job.inputs))
        raise DataError(f"{names} holds no usable document; the first that is not: {first or 'none is there'}")
    return [
        InputRecord(str(path.absolute()), state.size_bytes, job.sha256[path], documents[path], rejected[path])
        for path, state in job.inputs.items()
    ]


def _total(counts: Iterable[dict[str, int]]) -> Counter[str]:
    return sum(map(Counter, counts), Counter())
