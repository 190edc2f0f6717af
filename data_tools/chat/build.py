"""Renders conversations to tokens on disk: the same bytes from any number of processes, after any number of kills.

`PREFIX.bin` and `PREFIX.idx` hold the ids, one conversation per document; `PREFIX.mask.bin` and `PREFIX.mask.idx` one
byte per id, 1 where the token is supervised. Finished parts stay in `PREFIX.parts` until all are merged. The manifest
is written last: a pair that has one is complete. An invalid row ends the work, and the parts are deleted, unless the
mixture drops such rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from efficientbench.basics.errors import DataError
from efficientbench.basics.files import disk_errors_explained, sha256_of_each
from efficientbench.data_tools.chat.examples import Examples
from efficientbench.data_tools.chat.find_task import code_files
from efficientbench.data_tools.chat.mixture import Mixture, Source, draw_order, open_mixture, read_mixture, without
from efficientbench.data_tools.chat.record import ConversationRecord, TaskRecord, check_mask
from efficientbench.data_tools.chat.render import Renderer, make_renderer
from efficientbench.data_tools.chat.styles import Style
from efficientbench.data_tools.chat.task import Example
from efficientbench.data_tools.rows import RowError, reason_of
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
from efficientbench.data_tools.tokenizing.documents import Reject
from efficientbench.data_tools.tokenizing.inputs import InputState
from efficientbench.data_tools.tokenizing.parts import Document, PartCounts, PartMaker, merge_parts, part_file, total
from efficientbench.data_tools.tokens.indexed import bin_path, idx_path, mask_prefix
from efficientbench.data_tools.tokens.indexed_documents import IndexedDocuments
from efficientbench.data_tools.tokens.manifest import Corpus, load_record, versions

PART_ROWS = 2_000
"""The most conversations of a part: some seconds of work."""

_RULES = 2
"""Version of the rules that render and order conversations; work that another version began is refused."""

_SAMPLE_ROWS = 20
"""The number of conversations, from the beginning of each source, on which engines are compared."""


@dataclass(frozen=True)
class _ConversationParts(PartMaker):
    """Renders parts of conversations."""

    examples: tuple[Examples, ...]
    """The examples of each source."""
    states: tuple[InputState, ...]
    """The states of all input files."""
    renderer: Renderer
    drops: bool
    """Whether unusable rows are left out."""

    def documents(self, task: tuple[int, np.ndarray], counts: PartCounts) -> Iterator[Document | Reject]:
        source, numbers = task
        examples = self.examples[source]
        for number, example in zip(numbers.tolist(), examples.attempts(numbers), strict=True):
            if not isinstance(example, RowError):
                rendered = self.renderer.conversation(example.messages)
                yield Document(rendered.ids, _texts(example), rendered.mask)
                continue
            detail = f"{examples.place(number)}: {example}"
            if not self.drops:
                raise RowError(f"{detail}; `unusable: drop` in the mixture leaves such rows out, and counts them")
            yield Reject(number + 1, reason_of(example), detail)
        for state in self.states:
            state.check_unchanged()


def _texts(example: Example) -> list[str]:
    return [part.text for message in example.messages for part in message.parts]


@dataclass(frozen=True)
class _Job(PairJob):
    """One call of `build_conversations`; the task of a part is a source's index, and ascending numbers of its rows."""

    mixture_file: Path
    mixture: Mixture
    sources: list[Source]
    style: Style

    def plan(self) -> dict[str, Any]:
        content = {
            "rules": _RULES,
            "tokenizer": self.tokenizer.fingerprint,
            "style": self.style.template,
            "inputs": [[str(path.absolute()), digest] for path, digest in self.sha256.items()],
            "mixture": self.mixture.model_dump(exclude={"unusable"}),
        }
        # Where every row was usable, the pair is the same.
        content |= {"unusable": "drop"} if self.mixture.unusable == "drop" else {}
        return json.loads(json.dumps(content))  # type: ignore[no-any-return]

    def check_complete(self, corpus: Corpus) -> None:
        record = load_record(corpus.manifest, ConversationRecord)
        if record is None:
            raise DataError(f"{self.prefix} exists already, and was not made from conversations: choose another name")
        compare_plans(record.plan, self.plan(), self.prefix, ANOTHER_NAME)
        check_mask(corpus)

    def sample(self) -> list[str]:
        read = (each for source in self.sources for each in source.examples.attempts(source.numbers[:_SAMPLE_ROWS]))
        return [text for example in read if isinstance(example, Example) for text in _texts(example)]

    def part_maker(self, engine: Engine) -> _ConversationParts:
        examples = tuple(source.examples for source in self.sources)
        renderer = make_renderer(self.tokenizer, "", engine.encode)
        states, drops = tuple(self.inputs.values()), self.mixture.unusable == "drop"
        return _ConversationParts(self.folder, engine, self.dtype, examples, states, renderer, drops)

    def merge(self, engine: Engine, counts: Sequence[PartCounts]) -> Corpus:
        order = without(draw_order(self.sources, self.mixture.seed), self._rejected())
        if not len(order):
            reason = next(iter(total(counts).rejected))
            raise DataError(f"{self.mixture_file}: every row is unusable, such as by this reason: {reason}")
        merge_parts(self.folder, counts, self.prefix, self.dtype, order)
        by_source = [
            total(count for (source, _), count in zip(self.tasks, counts, strict=True) if source == place)
            for place in range(len(self.sources))
        ]
        tasks = [
            TaskRecord(
                task=source.entry.task,
                files=[str(path.absolute()) for path in source.examples.files],
                conversations=sums.documents,
                epochs=source.entry.epochs,
                tokens=sums.tokens,
                supervised_tokens=sums.supervised_tokens,
                rejected=sums.rejected,
            )
            for source, sums in zip(self.sources, by_source, strict=True)
        ]
        record = ConversationRecord(
            plan=self.plan(),
            tasks=tasks,
            style=self.style.name,
            supervised_tokens=sum(task.epochs * task.supervised_tokens for task in tasks),
            longest=int(IndexedDocuments(self.prefix).lengths().max()),
            special_token_strings=total(counts).special_token_strings,
            engine=engine.name,
            engine_reason=engine.reason,
            versions=versions(),
        )
        tokens = sum(task.epochs * task.tokens for task in tasks)
        utf8_bytes = sum(task.epochs * sums.utf8_bytes for task, sums in zip(tasks, by_source, strict=True))
        mask = mask_prefix(self.prefix)
        size = (len(order), tokens, utf8_bytes)
        return self.save(size, str(self.mixture_file), record, (bin_path(mask), idx_path(mask)))

    def _rejected(self) -> np.ndarray:
        """Return the indices of the rows that were left out, ascending, into the concatenated rows of all sources."""
        found, first = [np.empty(0, np.int64)], 0
        for part, (_, numbers) in enumerate(self.tasks):
            lines = part_file(self.folder, part, "rejects.jsonl").read_bytes().splitlines()
            found.append(first + np.searchsorted(numbers, [json.loads(line)["line"] - 1 for line in lines]))
            first += len(numbers)
        return np.concatenate(found)


def build_conversations(
    mixture: Path,
    prefix: Path,
    tokenizer: str | Path,
    *,
    workers: int = 1,
    on_part: OnPart = lambda done, parts: None,
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
    with disk_errors_explained(prefix.parent):
        read = read_mixture(mixture)
        loaded = load_tokenizer(tokenizer)
        style = make_renderer(loaded, str(tokenizer)).style
        sources = open_mixture(read, mixture)
        files = [path for each in sources for path in (*each.examples.files, *code_files(each.entry.task))]
        paths = list(dict.fromkeys(files))
        with building(prefix):
            states, sha256 = {path: InputState.of(path) for path in paths}, sha256_of_each(paths)
            tasks = [
                (place, source.numbers[first : first + PART_ROWS])
                for place, source in enumerate(sources)
                for first in range(0, len(source.numbers), PART_ROWS)
            ]
            job = _Job(prefix, loaded, states, sha256, tasks, mixture, read, sources, style)
            with start_workers(prefix, workers, tasks, _ConversationParts) as processes:
                return build(job, processes, on_part)
