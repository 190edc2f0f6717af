"""Contamination: find the items that share 13 consecutive tokens with a run's training text.

After GPT-3 (arXiv 2005.14165, appendix C), which counts words. An item's text excludes templates and shots.
The search covers all documents of the training split, also those that the run has not read.
N = 13.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from efficientbench.basics.errors import ConfigError
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.splitting import SPLITS, split_documents
from efficientbench.evaluation.task import ItemResult, Summary, Task
from efficientbench.running.corpora import block_readers, load_corpora
from efficientbench.running.job import Job
from efficientbench.running.trained import TrainedRun
from efficientbench.training.checkpoints.hashing import Report

TOKENS = 13
BLOCK = 1 << 20
"""The approximate number of tokens that are searched at once."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BETWEEN = -1
"""Separates documents; it is not a token."""


@runtime_checkable
class WithTexts(Protocol):
    """A task whose items have text that can be searched for."""

    def texts(self) -> Mapping[str, Sequence[int]]:
        """Return the tokens of each item's own text, by the item's name."""


def job_with_text(folder: Path) -> Job:
    """Return the job of a run whose training text is there. Raises ConfigError: it is not, or the run was imported."""
    job = TrainedRun.read(folder).job
    if missing := [path for path in job.corpora if not path.is_file()]:
        raise ConfigError(f"--contamination: the training text {missing[0]} is missing")
    if not job.corpora:
        raise ConfigError("--contamination: the model was imported: its training text is not known")
    return job


def training_documents(folder: Path, report: Report) -> Iterator[np.ndarray]:
    """Yield the tokens of every document of a run's training split, whether training has read it or not.

    `report` is told of each document.

    Raises:
        ConfigError: the run's corpus no longer exists, or the run was imported.
        DataError: the corpus is damaged.
    """
    job = job_with_text(folder)
    corpora, data = load_corpora(job), job.config.data
    prefixes, blocks = [corpus.prefix for corpus in corpora], block_readers(corpora)
    splits = split_documents(prefixes, data.split, corpora[0].vocab_size, Path(data.cache).absolute() / SPLITS)
    for prefix, split in zip(prefixes, splits, strict=True):
        documents = IndexedDocuments(prefix, blocks.get(prefix))
        for number in split.training.tolist():
            report("searching the training text")
            yield documents[number]


def find_contaminated(texts: Mapping[str, Sequence[int]], documents: Iterable[np.ndarray]) -> set[str]:
    """Return the names of the texts that share N consecutive tokens with a document; a shorter text shares none."""
    names: dict[bytes, set[str]] = {}
    for name, tokens in texts.items():
        for row in _windows(np.array(tokens, np.int64)):
            names.setdefault(row.tobytes(), set()).add(name)
    if not names:
        return set()
    wanted = np.frombuffer(b"".join(names), np.int64).reshape(-1, TOKENS)
    hashed = np.sort(_hashes(wanted.T))
    found: set[str] = set()
    for block in _blocks(documents):
        windows = _windows(block)
        hashes = _hashes(windows.T)
        places = np.minimum(np.searchsorted(hashed, hashes), len(hashed) - 1)
        # Different windows may have the same hash.
        for row in np.unique(windows[hashed[places] == hashes], axis=0):
            found |= names.get(row.tobytes(), set())
    return found


def _windows(tokens: np.ndarray) -> np.ndarray:
    """Return every window of N consecutive tokens, [n, N]."""
    if len(tokens) < TOKENS:
        return np.zeros((0, TOKENS), np.int64)
    return np.lib.stride_tricks.sliding_window_view(tokens, TOKENS)


def _hashes(columns: np.ndarray) -> np.ndarray:
    """Return the hashes [n] of windows with tokens [N, n]."""
    total = np.zeros(columns.shape[1], np.uint64)
    for column in columns:
        total = total * _FACTOR + column.astype(np.uint64)
    return total


def _blocks(documents: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the documents in blocks of about `BLOCK` tokens, each document followed by `_BETWEEN`."""
    waiting: list[np.ndarray] = []
    size = 0
    for document in documents:
        waiting += [document.astype(np.int64), np.array([_BETWEEN])]
        size += len(document)
        if size >= BLOCK:
            yield np.concatenate(waiting)
            waiting, size = [], 0
    if waiting:
        yield np.concatenate(waiting)


def without_contaminated(
    task: Task, results: Mapping[str, ItemResult], summary: Summary, folder: Path, report: Report
) -> Summary:
    """Return a task's summary with the contaminated items, and with `_clean` figures computed without them.

    Args:
        task: the task; if its items have no text, its summary is returned unchanged.
        results: the results of its items, by name.
        summary: the summary of all items.
        folder: the run's folder.
        report: told of the progress.

    Raises:
        ConfigError, DataError: see `training_documents`.
    """
    if not isinstance(task, WithTexts):
        return summary
    texts = task.texts()
    found = find_contaminated(texts, training_documents(folder, report))
    rest = {name: result for name, result in results.items() if name not in found}
    figures, unavailable = dict(summary.figures), dict(summary.unavailable)
    clean = task.summary(rest) if rest else None
    for name in summary.figures:
        value = clean.figures[name] if clean else None
        figures[f"{name}_clean"] = value
        if value is None:
            reason = clean.unavailable[name] if clean else "every item stands in the training text"
            unavailable[f"{name}_clean"] = reason
    counts = {
        "tokens_in_a_row": TOKENS,
        "items": len(results),
        "in_training_text": sorted(found),
        "too_short": sum(len(tokens) < TOKENS for tokens in texts.values()),
    }
    return Summary(figures, unavailable, {**summary.parts, "contamination": counts})
