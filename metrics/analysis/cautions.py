"""Reasons to doubt the figures of runs, each kind in one place for `compare`, `--fail-if` and reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from efficientbench.basics.grouped import grouped
from efficientbench.metrics.formulas.device_use import HARDWARE, HEAT
from efficientbench.metrics.records.record import RunRecord

LEAST_SHARE = 0.05
"""Least share to report: of readings with a cause of slowing, and of a step's time that the others wait longer than the
slowest rank. The power limit is no such cause, since a GPU that works hard is always at it."""
_MOST_RANKS = 8
"""Most slowed ranks that a sentence names."""
_MOST_NAMED = 3
"""Most slow steps and mismatches that a sentence names."""


def name(record: RunRecord) -> str:
    """Return the run's name, with what a reader must know before its figures."""
    status = "" if record.status == "completed" else f" ({record.status})"
    repeats = f" × {record.repeats}" if record.repeats > 1 else ""
    used, asked = record.micro_batch_size, record.micro_batch_size_asked
    smaller = f" (micro-batch {used} for {asked})" if used != asked else ""
    flagged = " (speed only)" if record.speed_only_reason else ""
    return f"{record.run}{' (smoke)' if record.smoke else ''}{repeats}{smaller}{flagged}{status}"


def _without_signal(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run that learned nothing, since the answers to each question had one reward."""
    found = [(record, record.reinforcement) for record in records if record.reinforcement is not None]
    return [
        f"{name(record)}: the answers to each of its {learned.questions:,} questions had one reward, so that every "
        "gradient was 0."
        for record, learned in found
        if learned.questions and learned.without_signal == learned.questions
    ]


def mismatched(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run in which a recheck computed other bits: the run's figures are in doubt."""
    found = []
    for record in records:
        rechecks = record.rechecks
        if rechecks is None or not rechecks.mismatched:
            continue
        listed = rechecks.mismatches
        named = "; ".join(map(str, listed[:_MOST_NAMED])) + ("; …" if len(listed) > _MOST_NAMED else "")
        counted = f"{rechecks.mismatched} of {rechecks.count} rechecks"
        by_kernels = f" These may compute other bits by themselves: {', '.join(record.nondeterministic)}."
        doubt = by_kernels if record.nondeterministic else ""
        found.append(f"{name(record)}: bits differed in {counted}: {named}.{doubt}")
    return found


def doubted(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run whose energy may be wrong."""
    return [f"{name(record)}: {record.energy_doubt}." for record in records if record.energy_doubt]


def disturbed(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence on runs during which another process used their devices."""
    # The seeds of a run have one name.
    names = dict.fromkeys(name(record) for record in records if record.disturbances)
    return [f"Another process used a device of {', '.join(names)} meanwhile."] if names else []


def slowed(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run with a device that heat or a fault slowed."""
    sentences = []
    for record in records:
        causes = [
            f"rank {each.rank} by {cause} in {share:.0%} of the readings"
            for each in record.device_conditions
            for cause, share in each.slowed_by.items()
            if cause in (*HEAT, HARDWARE) and share >= LEAST_SHARE
        ]
        if causes:
            more = f", and {len(causes) - _MOST_RANKS:,} more" if len(causes) > _MOST_RANKS else ""
            sentences.append(f"{record.run} was slowed: {'; '.join(causes[:_MOST_RANKS])}{more}.")
    return sentences


def straggling(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run of one pipeline stage with a rank that waits far less than the others do.

    Several pipeline stages have unequal work, so their waits say nothing.
    """
    sentences = []
    for record in records:
        waits = sorted(record.rank_waits, key=lambda each: each.communication_s)
        if len(waits) < 2 or record.pp > 1 or not record.al_s:
            continue
        own, others = waits[0].communication_s, fmean(each.communication_s for each in waits[1:])
        if others - own >= LEAST_SHARE * record.al_s:
            shares = f"{own / record.al_s:.0%} of a step for the others, and these {others / record.al_s:.0%}"
            sentences.append(f"{record.run}: rank {waits[0].rank} waited {shares}: it is the slowest.")
    return sentences


def drifting(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence on runs whose steps became slower or faster within the measured window."""
    flagged = [record for record in records if record.al_s_drift_flagged and record.al_s_drift_ratio is not None]
    ratios = [f"{name(record)} {_drift(record)}" for record in flagged]
    sentence = f"Time of a step at the measured window's end over that at its beginning: {', '.join(ratios)}."
    return [sentence] if ratios else []


def _drift(record: RunRecord) -> str:
    """Return the ratio with its interval; repeats have the ratio furthest from 1, and no interval."""
    ends = (record.al_s_drift_ratio_low, record.al_s_drift_ratio_high)
    interval = "" if None in ends else f" (95 %: {ends[0]:.3g} to {ends[1]:.3g})"
    return f"{record.al_s_drift_ratio:.3g}{interval}"


def slow_steps(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run with outliers: their number, and the slowest with their known causes."""
    found = []
    for record in records:
        slowest = sorted(record.outliers, key=lambda outlier: -outlier.step_time_s)[:_MOST_NAMED]
        if not slowest:
            continue
        named = ", ".join(
            f"step {outlier.step} ({outlier.times_median:.1f} times the median; {outlier.cause or 'cause not known'})"
            for outlier in slowest
        )
        steps = "1 step" if record.outlier_steps == 1 else f"{record.outlier_steps} steps"
        found.append(f"{record.run}: {steps} took much longer than the others: {named}.")
    return found


def resumed(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run that was resumed, since its figures cover the last attempt alone."""
    return [
        f"{record.run} was resumed after step {', '.join(map(str, record.resumed_after_steps))}: measured are the "
        "steps of its last attempt, after a warm-up of its own."
        for record in records
        if record.resumed_after_steps
    ]


def branched(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each branch, since its times are those of its own steps."""
    return [
        f"{record.run} continues its trunk after step {record.branched_after:,}: its times, hours and energies are "
        "those of its own steps."
        for record in records
        if record.branched_after
    ]


def short_of_text(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence that says which runs' losses are not compared, and why; none where all are compared."""
    runs = grouped((record.speed_only_reason, record.run) for record in records if record.speed_only_reason)
    parts = [f"{', '.join(names)}: {why}" for why, names in runs.items()]
    return [f"Speed only, without a comparison of losses: {'; '.join(parts)}."] if parts else []


def sparse_in_name(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for runs whose sparse attention reads more keys than dense attention does."""
    sparse: dict[tuple[float, float, int], list[str]] = {}
    for record in records:
        read, dense = record.keys_read_per_query, record.dense_keys_per_query
        if read is not None and dense is not None and read > dense:  # both are equal for dense attention
            sparse.setdefault((read, dense, record.seq_len), []).append(name(record))
    return [
        f"{', '.join(runs)}: sparse in name alone at sequence {seq_len:,}, where a query reads {read:,.0f} keys, "
        f"and {dense:,.0f} in dense causal attention."
        for (read, dense, seq_len), runs in sparse.items()
    ]


@dataclass(frozen=True)
class Kind:
    """One kind of caution."""

    title: str
    sentences: Callable[[Sequence[RunRecord]], list[str]]
    """Returns the sentences on those of some runs that it concerns."""
    carried: str = ""
    """What a verdict says of a side that it concerns, and not the other; empty: a verdict says nothing of it."""
    touches: Literal["all", "machine", "timed"] = "all"
    """The figures whose verdicts carry it: all, all but losses, or those of time and energy."""


KINDS = (
    Kind("Learned nothing from its rewards", _without_signal),
    Kind("Bits differed when a micro-batch was computed again", mismatched, "bits differed"),
    Kind("The energy may be wrong", doubted),
    Kind("Another process used the devices", disturbed, "another process used its devices", "machine"),
    Kind("Heat or a fault slowed the devices", slowed, "heat or a fault slowed it", "timed"),
    Kind("One rank keeps the others waiting", straggling, "one rank kept the others waiting", "timed"),
    Kind(
        "Steps became slower or faster in the measured window", drifting, "its steps became slower or faster", "timed"
    ),
    Kind("Some steps took much longer than the others", slow_steps),
    Kind("The measured steps are those of a last attempt", resumed, "measured in a last attempt", "machine"),
    Kind("A branch lacks the costs of its trunk", branched),
    Kind("Too little text for a comparison of losses", short_of_text),
    Kind("Sparse in name alone", sparse_in_name),
)
"""The kinds of caution on a run; the gravest is first."""
