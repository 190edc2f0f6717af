"""Reasons to doubt the figures of some runs: one line a kind, with the runs that it concerns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from efficientbench.metrics.analysis.cautions import KINDS
from efficientbench.metrics.records.generation.generation import GenerationRecord
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import of_other_formulas, speed_only, with_names
from efficientbench.metrics.report.sections.evaluations import Evaluated
from efficientbench.metrics.report.table import shortened


@dataclass(frozen=True)
class Caution:
    """One kind of caution."""

    title: str
    runs: tuple[str, ...]
    """Names of the runs that it concerns; empty where the sentences name them."""
    sentences: tuple[str, ...]
    """Sentences with the details."""


_OF_SETS: dict[str, Callable[[Sequence[RunRecord]], list[str]]] = {
    "Losses differ by no more than noise": speed_only,
    "Different formulas": of_other_formulas,
}
"""Kind of caution on several runs → what finds its sentences."""


UNCHECKED = "Without a checksum of their own"
WHY = "Damage in these files would not be found: an earlier version wrote them, or another tool."
_MOST_NAMED = 8


def cautions(records: Sequence[RunRecord], unchecked: Sequence[str] = ()) -> list[Caution]:
    """Return the cautions that concern any of these runs, and the files of `without_checksum`."""
    named = with_names(records)
    found = []
    for kind in KINDS:
        concerned = [own for own, record in named if kind.sentences([record])]
        if concerned:
            found.append(Caution(kind.title, tuple(concerned), tuple(kind.sentences(records))))
    for title, sentences_of in _OF_SETS.items():
        sentences = sentences_of(records)
        if sentences:
            found.append(Caution(title, (), tuple(sentences)))
    return [*found, *([Caution(UNCHECKED, tuple(unchecked), (WHY,))] if unchecked else [])]


def without_checksum(
    records: Sequence[RunRecord], generations: Sequence[GenerationRecord], evaluated: Sequence[Evaluated]
) -> list[str]:
    """Return a name for each file without a checksum: the run's, followed by the content unless it is training."""
    names = [record.run for record in records if record.sha256 is None]
    names += [f"{record.run} (generation)" for record in generations if record.sha256 is None]
    return names + [f"{each.run} ({each.task})" for each in evaluated if not each.checked]


def checksum_note(names: Sequence[str]) -> str:
    """Return one line that names the first of these files, and says what a missing checksum means."""
    return f"{UNCHECKED}: {shortened(names, _MOST_NAMED)}. {WHY}"
