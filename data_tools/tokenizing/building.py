"""Builds a pair in parts: the same bytes from any number of processes, and after any number of kills.

The folder `PREFIX.parts` holds the parts, and `plan.json` with everything that decides the result. Finished parts stay
there until all are made; a later call resumes from them. Then they are merged into `PREFIX.bin` and `PREFIX.idx` (which
takes twice their space for a moment). `PREFIX.manifest.json` is written last: a pair that has one is complete.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import beside, exclusive_lock, file_checksums, remove_partial, write_file
from efficientbench.basics.foreign import read_whole
from efficientbench.data_tools.rows import RowError
from efficientbench.data_tools.tokenizer.engine import Engine, choose_engine
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer
from efficientbench.data_tools.tokenizing.inputs import InputState
from efficientbench.data_tools.tokenizing.parallel import Workers
from efficientbench.data_tools.tokenizing.parts import PartCounts, PartMaker, finished_part
from efficientbench.data_tools.tokens.indexed import bin_path, check_indexed, hashes_path, idx_path, token_dtype
from efficientbench.data_tools.tokens.manifest import (
    Corpus,
    MakingRecord,
    load_corpus,
    manifest_path,
    pair_checksums,
    pair_fingerprint,
    save_corpus,
)

_INPUTS = TypeAdapter(list[tuple[str, str]])

ANOTHER_NAME = "choose another name for what is made now"
"""What helps if a complete pair was made by another plan."""

OnPart = Callable[[int, int], None]
"""Called with the number of finished parts and the number of all parts."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PairJob(ABC):
    """One call that builds a pair: the files that it reads, and how they become documents."""

    prefix: Path
    """The pair's path without suffix."""
    tokenizer: TextTokenizer
    inputs: dict[Path, InputState]
    sha256: dict[Path, str]
    tasks: Sequence[Any]
    """The input of each part, in order."""

    @property
    def folder(self) -> Path:
        """The folder of the parts."""
        return beside(self.prefix, "parts")

    @property
    def dtype(self) -> np.dtype:
        """The dtype of an id."""
        return token_dtype(self.tokenizer.vocab_size)

    @abstractmethod
    def plan(self) -> dict[str, Any]:
        """Return everything that decides the result, as JSON; `inputs` has path and SHA-256 of each file."""

    @abstractmethod
    def check_complete(self, corpus: Corpus) -> None:
        """Raise a DataError if this job would make another corpus than the complete one."""

    @abstractmethod
    def sample(self) -> list[str]:
        """Return some of the text, on which engines are compared."""

    @abstractmethod
    def part_maker(self, engine: Engine) -> PartMaker:
        """Return what makes the parts."""

    @abstractmethod
    def merge(self, engine: Engine, counts: Sequence[PartCounts]) -> Corpus:
        """Write the pair from its parts, and its manifest."""

    def save(
        self, size: tuple[int, int, int], source: str, record: MakingRecord, more_files: Sequence[Path] = ()
    ) -> Corpus:
        """Write the tokenizer and token lengths beside a merged pair, then the manifest; return the corpus.

        Args:
            size: The numbers of documents, tokens and UTF-8 bytes of text.
            source: The origin of the text, for people.
            record: How the pair was made.
            more_files: Files besides the pair and its hashes that the manifest lists.
        """
        others = {path: file_checksums(path) for path in (*more_files, hashes_path(self.prefix))}
        checksums = {**pair_checksums(self.prefix), **others}
        lengths_path = self.tokenizer.save_token_bytes(beside(self.prefix, "token_bytes.npy"))
        folder = beside(self.prefix, "tokenizer")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(self.folder / "tokenizer", folder)
        documents, tokens, utf8_bytes = size
        corpus = Corpus(
            prefix=self.prefix,
            vocab_size=self.tokenizer.vocab_size,
            eod_id=self.tokenizer.eod_id,
            tokens=tokens,
            documents=documents,
            utf8_bytes=utf8_bytes,
            token_bytes_path=lengths_path,
            tokenizer_folder=folder,
            tokenizer_fingerprint=self.tokenizer.fingerprint,
            fingerprint=pair_fingerprint(self.prefix, checksums),
            source=source,
            manifest=manifest_path(self.prefix),
        )
        save_corpus(corpus, checksums, record)
        return corpus


@contextmanager
def building(prefix: Path) -> Iterator[None]:
    """Hold a pair's lock; remove the partial files at the end, and after an invalid row the parts.

    Raises DataError: the pair's path names a folder.
    """
    if not prefix.name:
        raise DataError(f"{prefix} is a folder: give the path of the pair, without suffix")
    prefix.parent.mkdir(parents=True, exist_ok=True)
    folder = beside(prefix, "parts")
    with exclusive_lock(beside(prefix, "lock")):
        try:
            yield
        except RowError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            remove_partial(folder)


def start_workers(prefix: Path, workers: int, tasks: Sequence[Any], kind: type[PartMaker]) -> Workers:
    """Start the processes that make the parts of a pair; none if it is complete."""
    return Workers(0 if manifest_path(prefix).exists() else min(workers, len(tasks)), kind)


def build(job: PairJob, workers: Workers, on_part: OnPart) -> Corpus:
    """Build a pair, or resume an interrupted call; leave a complete pair unchanged.

    Raises:
        DataError: the pair or its parts were made by another job, an input changed since, or a worker process died.
    """
    if manifest_path(job.prefix).exists():
        corpus = load_corpus(manifest_path(job.prefix))
        check_indexed(job.prefix)
        job.check_complete(corpus)
        shutil.rmtree(job.folder, ignore_errors=True)
        logger.info("%s is complete already", job.prefix)
        return corpus
    _begin(job)
    engine = choose_engine(job.tokenizer, job.folder / "tokenizer", job.sample())
    counts = _make_parts(job, job.part_maker(engine), workers, on_part)
    for state in job.inputs.values():
        state.check_unchanged()
    corpus = job.merge(engine, counts)
    shutil.rmtree(job.folder)
    return corpus


def _begin(job: PairJob) -> None:
    """Make the folder of the parts, or check the plan in the existing one, and copy the tokenizer into it."""
    plan, content = job.folder / "plan.json", job.plan()
    if not plan.exists():
        shutil.rmtree(job.folder, ignore_errors=True)
        if found := [path for path in (bin_path(job.prefix), idx_path(job.prefix)) if path.exists()]:
            raise DataError(f"{found[0]} exists already, and this command did not make it: choose another name")
        job.folder.mkdir()
        write_file(plan, json.dumps(content).encode())
    remedy = f"delete the folder {job.folder} to begin again"
    compare_plans(read_plan(plan, remedy), content, job.prefix, remedy)
    remove_partial(job.folder)
    job.tokenizer.save(job.folder / "tokenizer")


def _make_parts(job: PairJob, make_part: PartMaker, workers: Workers, on_part: OnPart) -> list[PartCounts]:
    """Make the missing parts, and return the counts of all parts."""
    counts = [finished_part(job.folder, number) for number in range(len(job.tasks))]
    missing = [number for number, count in enumerate(counts) if count is None]
    done = len(counts) - len(missing)
    if missing and done:
        logger.info("continuing from %d finished parts of %d", done, len(counts))
    numbered = [(number, job.tasks[number]) for number in missing]
    for (number, _), count in workers.run(make_part, job.folder / "make_part.pickle", numbered):
        counts[number] = count
        done += 1
        on_part(done, len(counts))
    return [count for count in counts if count is not None]


def read_plan(path: Path, remedy: str) -> dict[str, Any]:
    """Read the plan that an earlier call recorded.

    Raises:
        DataError: the plan is damaged; the message ends with the remedy.
    """
    try:
        plan = TypeAdapter(dict[str, Any]).validate_json(read_whole(path))
        _INPUTS.validate_python(plan.get("inputs"))
    except (OSError, ValidationError):
        raise DataError(f"{path} is damaged: {remedy}") from None
    return plan


def compare_plans(made: Mapping[str, Any], wanted: Mapping[str, Any], prefix: Path, remedy: str) -> None:
    """Raise a DataError if `made`, the recorded plan of a pair, differs from the plan `wanted` now."""
    now = dict(wanted["inputs"])
    for path, digest in made["inputs"]:
        if digest != now.get(path, digest):
            raise DataError(f"{path} changed since {prefix} was begun: put the old file back, or {remedy}")
    for key in made:
        if made[key] != wanted.get(key):
            raise DataError(f"{prefix} was begun with other {key}: take the same, or {remedy}")
