"""Reasons to doubt the figures of some runs: one line a kind, with the runs that it concerns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from efficientbench.metrics.records.generation.generation import GenerationRecord
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.headline import (
    disturbed,
    doubted,
    drifting,
    mismatched,
    name,
    of_other_formulas,
    resumed,
    short_of_text,
    slow_steps,
    sparse_in_name,
    speed_only,
    unique_names,
)
from efficientbench.metrics.report.sections.evaluations import Evaluated
from efficientbench.metrics.report.slow_ranks import slowed, straggling
from efficientbench.metrics.report.table import shortened

Sentences = Callable[[Sequence[RunRecord]], list[str]]


@dataclass(frozen=True)
class Caution:
    """One kind of caution."""

    title: str
    runs: tuple[str, ...]
    """Names of the runs that it concerns; empty where the sentences name them."""
    sentences: tuple[str, ...]
    """Sentences with the details."""


def _without_signal(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run that learned nothing, since the answers to each question had one reward."""
    found = [(record, record.reinforcement) for record in records if record.reinforcement is not None]
    return [
        f"{name(record)}: the answers to each of its {learned.questions:,} questions had one reward, so that every "
        "gradient was 0."
        for record, learned in found
        if learned.questions and learned.without_signal == learned.questions
    ]


_OF_RUNS: dict[str, Sentences] = {
    "Learned nothing from its rewards": _without_signal,
    "Bits differed when a micro-batch was computed again": mismatched,
    "The energy may be wrong": doubted,
    "Another process used the devices": disturbed,
    "Heat or a fault slowed the devices": slowed,
    "One rank keeps the others waiting": straggling,
    "Steps became slower or faster in the measured window": drifting,
    "Some steps took much longer than the others": slow_steps,
    "The measured steps are those of a last attempt": resumed,
    "Too little text for a comparison of losses": short_of_text,
    "Sparse in name alone": sparse_in_name,
}
"""Kind → what finds its sentences; the gravest kind is first."""
_OF_SETS: dict[str, Sentences] = {
    "Losses differ by no more than noise": speed_only,
    "Different formulas": of_other_formulas,
}


UNCHECKED = "Without a checksum of their own"
WHY = "Damage in these files would not be found: an earlier version wrote them, or another tool."
_MOST_NAMED = 8


def cautions(records: Sequence[RunRecord], unchecked: Sequence[str] = ()) -> list[Caution]:
    """Return the cautions that concern any of these runs, and the files of `without_checksum`."""
    names = unique_names(records)
    found = []
    for title, sentences_of in _OF_RUNS.items():
        concerned = [own for own, record in zip(names, records, strict=True) if sentences_of([record])]
        if concerned:
            found.append(Caution(title, tuple(concerned), tuple(sentences_of(records))))
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
