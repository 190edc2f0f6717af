"""The table of results that the terminal, report.md and report.html share, and its notes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.console import Console

from efficientbench.metrics.analysis.cautions import KINDS, name
from efficientbench.metrics.analysis.conditions import group
from efficientbench.metrics.analysis.judging import training_of
from efficientbench.metrics.formulas.ratio import MIN_REPEATS, SIGNIFICANCE, Estimate
from efficientbench.metrics.formulas.statistics import SURE_STEPS
from efficientbench.metrics.records.figure import Headline, percent
from efficientbench.metrics.records.figures import WITH
from efficientbench.metrics.records.other_layers import layers_of
from efficientbench.metrics.records.record import FIGURES, RunRecord
from efficientbench.metrics.report.comparison import noise_floors
from efficientbench.metrics.report.table import ABSENT, Table, print_wide_table, spoken

SMOKE_NOTE = "(smoke): a scaled-down model; its figures do not stand for the named one's."

SMALLER_NOTE = "micro-batch m for n: memory did not suffice for n; the global batch is that of the others."
FEW_RUNS_NOTE = (
    f"Rows of fewer than {MIN_REPEATS} repeats: no verdict on what sets them apart, since the noise between runs is "
    f"not known (--repeat {MIN_REPEATS})."
)
AT_LEAST_NOTE = (
    f"≥: the interval is at least so wide, for fewer than {SURE_STEPS} measured steps do not show slow changes."
)
REPEATS_NOTE = "× n: the mean of n runs with consecutive seeds, ± their standard deviation; ±95%: the mean's interval."

MOST_PRINTED = 24
"""Most rows that a terminal shows, so that they fit a page."""
LEAST_MARGIN = 0.001
"""The least margin that is printed as a number."""
HEADLINE: dict[str, Headline] = {
    name: row.headline for name, row in sorted(FIGURES.items(), key=lambda item: item[1].place) if row.headline
}
"""Figure → its column in the table of results, from the left."""


def results_table(records: Sequence[RunRecord], figures: Collection[str] = HEADLINE) -> Table:
    """Return the table of results: one row a run, and what a reader must know before comparing the runs."""
    rows = [(own, *(cell(figure, record) for figure in figures)) for own, record in with_names(records)]
    known = (*notes(records), *map(str, noise_floors(records)))
    return Table(("run", *(HEADLINE[figure].title for figure in figures)), rows, notes=known)


def print_results(records: Sequence[RunRecord], console: Console, figures: Collection[str] = HEADLINE) -> None:
    """Print one row a run with these figures, then the notes, then each reason for an n/a once."""
    if not records:
        console.print(spoken("No run has a record yet."))
        return
    printed = _most_telling(records)
    table = results_table(printed, figures)
    print_wide_table(table, console)
    if len(printed) < len(records):
        most = "those of the lowest validation loss, without losses the fastest: report.md has all."
        console.print(spoken(f"{len(printed)} of {len(records):,} rows, {most}"))
    metered = [f"{name(record)}: {meter}." for record in records for meter in record.meters]
    for note in (*table.notes, *metered):
        console.print(spoken(note))
    for absence in absences(printed, figures):
        console.print(spoken(str(absence)), style="dim")


def _most_telling(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the rows that a terminal shows, in their order."""

    def order(place: int) -> tuple[float, float]:
        loss = records[place].validation_loss
        return math.inf if loss is None else loss, -(records[place].tokens_per_s or 0.0)

    return [records[place] for place in sorted(sorted(range(len(records)), key=order)[:MOST_PRINTED])]


def unique_names(records: Sequence[RunRecord]) -> list[str]:
    """Return the runs' names; runs of one name get the seed behind it, and a number where the seed is shared too.

    First they get their layers, where those differ, as by the width of a window.
    """
    plain = [name(record) for record in records]
    layers = [layers_of(record.config)[0] for record in records]
    pairs = list(zip(plain, layers, strict=True))
    kinds = Counter(own for own, of in set(pairs) if of)
    named = [f"{own}{WITH}{of})" if of and kinds[own] > 1 else own for own, of in pairs]
    return told_apart([(own, record.seed) for own, record in zip(named, records, strict=True)])


def with_names(records: Sequence[RunRecord]) -> list[tuple[str, RunRecord]]:
    """Return each run with its name of `unique_names`."""
    return list(zip(unique_names(records), records, strict=True))


def told_apart(named: Sequence[tuple[str, int]]) -> list[str]:
    """Return the names of runs, given with their seeds, as `unique_names` does."""
    plain = Counter(run for run, _ in named)
    taken: Counter[str] = Counter()
    unique = []
    for run, seed in named:
        own = run if plain[run] == 1 else f"{run} seed {seed}"
        taken[own] += 1
        unique.append(own if taken[own] == 1 else f"{own} #{taken[own]}")
    return unique


def cell(figure: str, record: RunRecord) -> str:
    """Return a figure of the table of results as text, or 'n/a'."""
    value, text = getattr(record, figure), HEADLINE[figure].text
    if value is None:
        return ABSENT
    if figure == "al_s_ci_high":
        noise = relative_interval(record)
        return ABSENT if noise is None else f"{'≥' if is_least(record) else ''}{margin(noise)}"
    deviation = record.repeat_std.get(figure)
    # A step's time has its interval in a column of its own.
    if deviation is None or not value or figure == "al_s":
        return text(value)
    # Repeats may be equal, as in a count of bytes.
    return f"{text(value)} {margin(deviation / value)}" if deviation else text(value)


def margin(share: float) -> str:
    """Return a margin in percent of its figure; one that would be 0.0 % is above 0 all the same."""
    return f"±{percent(share)}" if share >= LEAST_MARGIN else f"±<{percent(LEAST_MARGIN)}"


def relative_interval(record: RunRecord) -> float | None:
    """Return half the 95 % interval of a step's time over its mean; None where it is not known."""
    if not record.al_s or record.al_s_ci_low is None or record.al_s_ci_high is None:
        return None
    return (record.al_s_ci_high - record.al_s_ci_low) / 2 / record.al_s


def is_least(record: RunRecord) -> bool:
    """Return whether a step's time may have a wider interval: few steps of a single run do not show slow changes."""
    return record.repeats == 1 and record.steps_measured < SURE_STEPS


@dataclass(frozen=True)
class Absence:
    """One reason for figures that are n/a."""

    titles: tuple[str, ...]
    """Titles of the columns that are n/a for this reason."""
    runs: tuple[str, ...]
    everywhere: bool
    """Whether the reason holds for all runs of the report."""
    reason: str

    def __str__(self) -> str:
        where = "" if self.everywhere else f" ({', '.join(self.runs)})"
        return f"{ABSENT} {', '.join(self.titles)}{where}: {self.reason}"


def absences(records: Sequence[RunRecord], figures: Collection[str] = HEADLINE) -> list[Absence]:
    """Return each reason for an n/a among these figures once."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for record in records:
        for figure in figures:
            if getattr(record, figure) is None:
                titles, runs = found.setdefault(record.unavailable[figure], ({}, {}))
                titles[HEADLINE[figure].title] = None
                runs[name(record)] = None
    everyone = len({name(record) for record in records})
    return [
        Absence(tuple(titles), tuple(runs), len(runs) == everyone, reason) for reason, (titles, runs) in found.items()
    ]


def notes(records: Sequence[RunRecord]) -> list[str]:
    """Return what a reader must know before comparing these runs."""
    of_runs = [sentence for kind in KINDS for sentence in kind.sentences(records)]
    return [*signs(records), *of_runs, *speed_only(records), *of_other_formulas(records)]


def signs(records: Sequence[RunRecord]) -> list[str]:
    """Return what the signs in the table of these runs mean."""
    found = [SMOKE_NOTE] if any(record.smoke for record in records) else []
    if any(record.micro_batch_size != record.micro_batch_size_asked for record in records):
        found.append(SMALLER_NOTE)
    if any(relative_interval(record) is not None and is_least(record) for record in records):
        found.append(AT_LEAST_NOTE)
    if any(record.repeats > 1 for record in records):
        found.append(REPEATS_NOTE)
    if len({record.run for record in records}) > 1 and any(record.repeats < MIN_REPEATS for record in records):
        found.append(FEW_RUNS_NOTE)
    return found


def of_other_formulas(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence where the runs follow different editions of the formulas."""
    editions = sorted({record.formula_id for record in records})
    several = f"These runs follow different formulas ({', '.join(editions)}): do not compare across them."
    return [several] if len(editions) > 1 else []


def speed_only(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each set of comparable runs of one size whose losses differ from the lowest by noise alone.

    The noise is that between repeats, at 5 % for all pairs of a set together. Runs of too few repeats are skipped.
    """
    sets: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        if record.validation_loss and record.repeats >= MIN_REPEATS and not record.speed_only_reason:
            sets.setdefault((record.size, group(record) + repr(training_of(record))), []).append(record)
    found = []
    for members in sets.values():
        best = min(members, key=lambda record: record.validation_loss or 0.0)
        # The lowest is chosen after the fact, so that every pair of the set counts as a comparison (Bonferroni).
        pairs = len(members) * (len(members) - 1) / 2
        others = [record for record in members if record is not best]
        alike = [best.run, *(record.run for record in others if pairs * _p_value(best, record) >= SIGNIFICANCE)]
        if len(alike) > 1:
            found.append(
                f"Between {', '.join(alike)} the comparison is one of speed only: losses differ by no more than the "
                "noise between seeds."
            )
    return found


def _p_value(one: RunRecord, other: RunRecord) -> float:
    """Return the p value of the difference between two validation losses, by the repeats of both rows (Welch)."""
    losses = [record.validation_loss or 0.0 for record in (one, other)]
    noise = [
        Estimate((record.repeat_std["validation_loss"] / loss) ** 2 / record.repeats, record.repeats - 1)
        for record, loss in zip((one, other), losses, strict=True)
    ]
    return (noise[0] + noise[1]).p_value(math.log(losses[1] / losses[0]))
