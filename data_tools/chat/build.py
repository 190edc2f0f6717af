"""Renders conversations to tokens on disk: the same bytes from any number of processes, after any number of kills.

`PREFIX.bin` and `PREFIX.idx` hold the ids, one conversation per document; `PREFIX.mask.bin` and `PREFIX.mask.idx` one
byte per id, 1 where the token is supervised. Finished parts stay in `PREFIX.parts` until all are merged. The manifest
is written last: a pair that has one is complete. An invalid row ends the work, and the parts are deleted.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
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
from efficientbench.data_tools.chat.examples import ConversationError
from efficientbench.data_tools.chat.find_task import code_files
from efficientbench.data_tools.chat.mixture import Mixture, Source, draw_order, open_mixture, read_mixture
from efficientbench.data_tools.chat.parts import ConversationCounts, PartRenderer, cut_into_parts, merge_parts
from efficientbench.data_tools.chat.record import ConversationRecord, TaskRecord, check_mask, mask_prefix
from efficientbench.data_tools.chat.render import Renderer, make_renderer
from efficientbench.data_tools.tokenizer.engine import Engine, choose_engine
from efficientbench.data_tools.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from efficientbench.data_tools.tokenizing.building import begin, corpus_of_parts, make_parts, parts_folder
from efficientbench.data_tools.tokenizing.inputs import InputState
from efficientbench.data_tools.tokenizing.parallel import Workers
from efficientbench.data_tools.tokenizing.plan import compare_plans
from efficientbench.data_tools.tokens.indexed import bin_path, check_indexed, hashes_path, idx_path, token_dtype
from efficientbench.data_tools.tokens.manifest import (
    Corpus,
    load_corpus,
    load_record,
    manifest_path,
    pair_checksums,
    save_corpus,
    versions,
)

_RULES = 1
"""Version of the rules that render and order conversations; work that another version began is refused."""

_SAMPLE_ROWS = 20
"""The number of conversations, from the beginning of each source, on which engines are compared."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Job:
    """One call of `build_conversations`: the rows and files that it reads, and the pair that it makes."""

    prefix: Path
    mixture_file: Path
    mixture: Mixture
    sources: list[Source]
    states: tuple[InputState, ...]
    sha256: dict[Path, str]
    tokenizer: TextTokenizer
    renderer: Renderer

    @property
    def dtype(self) -> np.dtype:
        return token_dtype(self.tokenizer.vocab_size)

    def content(self) -> dict[str, Any]:
        """Return the plan: everything that decides the result."""
        content = {
            "rules": _RULES,
            "tokenizer": self.tokenizer.fingerprint,
            "style": self.renderer.style.template,
            "inputs": [[str(path.absolute()), digest] for path, digest in self.sha256.items()],
            "mixture": self.mixture.model_dump(),
        }
        return json.loads(json.dumps(content))  # type: ignore[no-any-return]


def build_conversations(
    mixture: Path,
    prefix: Path,
    tokenizer: str | Path,
    *,
    workers: int = 1,
    on_part: Callable[[int, int], None] = lambda done, parts: None,
) -> Corpus:
    """Render the conversations of a mixture into the pair `prefix` and its mask, or resume an interrupted call.

    A complete pair of the same mixture and files is left unchanged.

    Args:
        mixture: The mixture's YAML file.
        prefix: The pair's path without suffix.
        tokenizer: The folder, or the name on the hub, of a tokenizer with chat tokens.
        workers: The number of processes that render.
        on_part: Called with the number of finished parts and the number of all parts.

    Raises:
        DataError: the mixture, the tokenizer or a row is not valid, an input changed since the parts were made, the
            pair was made from other inputs, the disk is full, or a worker process died.
    """
    if not prefix.name:
        raise DataError(f"{prefix} is a folder: give the path of the pair, without suffix")
    with disk_errors_explained(prefix.parent):
        read = read_mixture(mixture)
        loaded = load_tokenizer(tokenizer)
        renderer = make_renderer(loaded, str(tokenizer))
        sources = open_mixture(read, mixture)
        files = [path for each in sources for path in (*each.examples.files, *code_files(each.entry.task))]
        paths = list(dict.fromkeys(files))
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(beside(prefix, "lock")):
            states = tuple(map(InputState.of, paths))
            job = _Job(prefix, mixture, read, sources, states, sha256_of_each(paths), loaded, renderer)
            if manifest_path(prefix).exists():
                return _complete_corpus(job)
            try:
                return _make_corpus(job, workers, on_part)
            except ConversationError:
                shutil.rmtree(parts_folder(prefix), ignore_errors=True)
                raise
            finally:
                remove_partial(parts_folder(prefix))


def _complete_corpus(job: _Job) -> Corpus:
    """Return the complete corpus; raise a DataError if this job would make a different one."""
    corpus = load_corpus(manifest_path(job.prefix))
    record = load_record(corpus.manifest, ConversationRecord)
    if record is None:
        raise DataError(f"{job.prefix} exists already, and was not made from conversations: choose another name")
    compare_plans(record.plan, job.content(), job.prefix, "choose another name for what is made now")
    check_indexed(job.prefix)
    check_mask(corpus)
    shutil.rmtree(parts_folder(job.prefix), ignore_errors=True)
    logger.info("%s is complete already", job.prefix)
    return corpus


def _make_corpus(job: _Job, workers: int, on_part: Callable[[int, int], None]) -> Corpus:
    begin(job.prefix, job.content(), job.tokenizer)
    folder = parts_folder(job.prefix)
    engine = choose_engine(job.tokenizer, folder / "tokenizer", _sample(job.sources))
    renderer = make_renderer(job.tokenizer, "", engine.encode)
    examples = tuple(source.examples for source in job.sources)
    render_part = PartRenderer(folder, examples, job.states, engine, renderer, job.dtype)
    parts = cut_into_parts([source.numbers for source in job.sources])
    with Workers(min(workers, len(parts)), PartRenderer) as processes:
        counts = make_parts(folder, render_part, parts, ConversationCounts, processes, on_part)
    for state in job.states:
        state.check_unchanged()
    by_source = [
        [count for part, count in zip(parts, counts, strict=True) if part.source == place]
        for place in range(len(job.sources))
    ]
    return _merge(job, engine, by_source)


def _sample(sources: Sequence[Source]) -> list[str]:
    return [
        part.text
        for source in sources
        for example in source.examples.read(source.numbers[:_SAMPLE_ROWS])
        for message in example.messages
        for part in message.parts
    ]


def _merge(job: _Job, engine: Engine, counts: Sequence[Sequence[ConversationCounts]]) -> Corpus:
    """Write the pairs from their parts, and the files beside them, the manifest last."""
    folder, prefix = parts_folder(job.prefix), job.prefix
    order = draw_order(job.sources, job.mixture.seed)
    merged = merge_parts(folder, sum(map(len, counts)), order, prefix, job.dtype)
    others = (bin_path(mask_prefix(prefix)), idx_path(mask_prefix(prefix)), hashes_path(prefix))
    checksums = {**pair_checksums(prefix), **{path: file_checksums(path) for path in others}}
    utf8_bytes = sum(
        source.entry.epochs * sum(count.utf8_bytes for count in found)
        for source, found in zip(job.sources, counts, strict=True)
    )
    size = (len(order), int(merged.lengths.sum(dtype=np.int64)), utf8_bytes)
    corpus = corpus_of_parts(prefix, job.tokenizer, checksums, size, str(job.mixture_file))
    special = sum((Counter(count.special_token_strings) for count in itertools.chain(*counts)), Counter[str]())
    record = ConversationRecord(
        plan=job.content(),
        tasks=[_task_record(source, found) for source, found in zip(job.sources, counts, strict=True)],
        style=job.renderer.style.name,
        supervised_tokens=merged.supervised_tokens,
        longest=int(merged.lengths.max()),
        special_token_strings=dict(special),
        engine=engine.name,
        engine_reason=engine.reason,
        versions=versions(),
    )
    save_corpus(corpus, checksums, record)
    shutil.rmtree(folder)
    return corpus


def _task_record(source: Source, counts: Sequence[ConversationCounts]) -> TaskRecord:
    return TaskRecord(
        task=source.entry.task,
        files=[str(path.absolute()) for path in source.examples.files],
        conversations=len(source.numbers),
        epochs=source.entry.epochs,
        tokens=sum(count.tokens for count in counts),
        supervised_tokens=sum(count.supervised_tokens for count in counts),
    )
