"""Tokenizes files of text into a corpus."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import beside, complete_file, disk_errors_explained, sha256_of_each
from efficientbench.data_tools.tokenizer.engine import Engine
from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer
from efficientbench.data_tools.tokenizing.building import (
    ANOTHER_NAME,
    OnPart,
    PairJob,
    build,
    building,
    compare_plans,
    start_workers,
)
from efficientbench.data_tools.tokenizing.documents import MAX_DOCUMENT_MB, TEXT_KEY, PartReader, Reject, sample_texts
from efficientbench.data_tools.tokenizing.inputs import InputState, Part, cut_into_parts, find_inputs
from efficientbench.data_tools.tokenizing.parts import Document, PartCounts, PartMaker, merge_parts, part_file, total
from efficientbench.data_tools.tokens.manifest import (
    Corpus,
    InputRecord,
    TokenizeRecord,
    load_record,
    versions,
)

MAX_REJECTS = 0.01
"""The default fraction of all documents that may be unusable."""


@dataclass(frozen=True)
class _TextParts(PartMaker):
    """Tokenizes parts of files; each document ends with the end-of-document token."""

    eod_id: int
    text_key: str
    max_document_mb: int

    def documents(self, task: tuple[Part, InputState], counts: PartCounts) -> Iterator[Document | Reject]:
        part, state = task
        reader = PartReader(part, self.text_key, self.max_document_mb)
        for document in reader:
            if isinstance(document, Reject):
                yield document
            else:
                yield Document(np.append(self.engine.encode(document), np.uint32(self.eod_id)), [document])
        counts.lines = reader.lines
        state.check_unchanged()


@dataclass(frozen=True)
class _Job(PairJob):
    """One call of `tokenize_files`; the task of a part is its place in a file, and the file's state."""

    text_key: str
    max_document_mb: int
    max_rejects: float
    source: str

    def plan(self) -> dict[str, Any]:
        parts = [part for part, _ in self.tasks]
        return {
            "tokenizer": self.tokenizer.fingerprint,
            "text key": self.text_key,
            "--max-document-mb": self.max_document_mb,
            "inputs": [[str(path.absolute()), self.sha256[path]] for path in self.inputs],
            "cuts": [[str(part.path.absolute()), part.begin, part.end] for part in parts],
        }

    def sample(self) -> list[str]:
        return sample_texts([part for part, _ in self.tasks], self.text_key, self.max_document_mb)

    def part_maker(self, engine: Engine) -> _TextParts:
        return _TextParts(self.folder, engine, self.dtype, self.tokenizer.eod_id, self.text_key, self.max_document_mb)

    def check_complete(self, corpus: Corpus) -> None:
        record = load_record(corpus.manifest, TokenizeRecord)
        if record is None:
            raise DataError(f"{self.prefix} exists already, and was not made from files: choose another name")
        made: dict[str, Any] = {
            "tokenizer": corpus.tokenizer_fingerprint,
            "text key": record.text_key,
            "inputs": [[item.path, item.sha256] for item in record.inputs],
        }
        if record.max_document_mb is not None:
            made["--max-document-mb"] = record.max_document_mb
        compare_plans(made, self.plan(), self.prefix, ANOTHER_NAME)
        rejected, documents = sum(record.rejected.values()), corpus.documents
        if rejected > self.max_rejects * (rejected + documents):
            raise DataError(
                f"{self.prefix} was made with {rejected:,} of {rejected + documents:,} documents skipped, and now at "
                f"most {self.max_rejects:.2%} may be: mend them and choose another name, or allow more"
            )

    def merge(self, engine: Engine, counts: Sequence[PartCounts]) -> Corpus:
        sums = total(counts)
        self._check_rejects(sums, self._merge_rejects(counts))
        merge_parts(self.folder, counts, self.prefix, self.dtype)
        record = TokenizeRecord(
            inputs=self._input_records(counts),
            text_key=self.text_key,
            engine=engine.name,
            engine_reason=engine.reason,
            bytes_per_token=sums.utf8_bytes / sums.tokens,
            rejected=sums.rejected,
            special_token_strings=sums.special_token_strings,
            versions=versions(),
            max_document_mb=self.max_document_mb,
        )
        return self.save((sums.documents, sums.tokens, sums.utf8_bytes), self.source, record)

    def _merge_rejects(self, counts: Sequence[PartCounts]) -> str | None:
        """Write the list of unusable documents, with lines counted from each file's start; describe the first."""
        first = None
        lines: Counter[Path] = Counter()  # lines of each file in the parts before
        with complete_file(beside(self.prefix, "rejects.jsonl")) as stream:
            for number, ((part, _), count) in enumerate(zip(self.tasks, counts, strict=True)):
                with part_file(self.folder, number, "rejects.jsonl").open("rb") as rejects:
                    for reject in (Reject(**json.loads(row)) for row in rejects):
                        line = lines[part.path] + reject.line
                        first = first or f"{part.path}:{line}: {reject.detail}"
                        row = {"file": str(part.path.absolute()), "line": line, "reason": reject.reason}
                        stream.write(json.dumps({**row, "detail": reject.detail}).encode() + b"\n")
                lines[part.path] += count.lines
        return first

    def _check_rejects(self, sums: PartCounts, first: str | None) -> None:
        """Raise a DataError if too many documents are unusable; `first` describes the first of them."""
        bad, good = sum(sums.rejected.values()), sums.documents
        if bad > self.max_rejects * (bad + good):
            raise DataError(
                f"{bad:,} of {bad + good:,} documents are not usable, and at most {self.max_rejects:.2%} may be (the "
                f"first: {first}); {self.prefix}.rejects.jsonl lists them: mend them, or allow more"
            )
        if good == 0:
            names = ", ".join(map(str, self.inputs))
            raise DataError(f"{names} holds no usable document; the first that is not: {first or 'none is there'}")

    def _input_records(self, counts: Sequence[PartCounts]) -> list[InputRecord]:
        documents: Counter[Path] = Counter()
        rejected: Counter[Path] = Counter()
        for (part, _), count in zip(self.tasks, counts, strict=True):
            documents[part.path] += count.documents
            rejected[part.path] += sum(count.rejected.values())
        return [
            InputRecord(str(path.absolute()), state.size_bytes, self.sha256[path], documents[path], rejected[path])
            for path, state in self.inputs.items()
        ]


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
    on_part: OnPart = lambda done, parts: None,
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
    with disk_errors_explained(prefix.parent):
        paths = find_inputs(inputs)
        with building(prefix):
            states = {path: InputState.of(path) for path in paths}
            tasks = [(part, states[part.path]) for part in cut_into_parts(paths, text_key)]
            # Before the tokenizer is loaded, so that the workers start meanwhile.
            with start_workers(prefix, workers, tasks, _TextParts) as processes:
                loaded, sha256 = load_tokenizer(tokenizer), sha256_of_each(paths)
                names = ", ".join(map(str, paths[:3])) + (", ..." if len(paths) > 3 else "")
                limits = (text_key, max_document_mb, max_rejects)
                return build(_Job(prefix, loaded, states, sha256, tasks, *limits, source or names), processes, on_part)
