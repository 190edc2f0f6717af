"""Reasons to doubt the figures of some runs: one line a kind, with the runs that it concerns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from efficientbench.metrics.report.slow_ranks import slowed, straggling

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


def cautions(records: Sequence[RunRecord]) -> list[Caution]:
    """Return the cautions that concern any of these runs."""
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
    return found
