"""The answer of a study: everything that its page, its JSON and its HTML show, in one value that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from efficientbench.basics.errors import MetricsError
from efficientbench.studies.cautions import of_fit, of_plan
from efficientbench.studies.effects import Fit, Prior, fitted_to
from efficientbench.studies.findings import (
    CellDifference,
    Crossing,
    Noise,
    Ranking,
    Trend,
    all_crossings,
    differences,
    noises,
    ranking,
    trends,
)
from efficientbench.studies.further import Further, what_would_help
from efficientbench.studies.ladder import LEAST_BUDGETS, LEAST_SIZES, Cell, Ladder
from efficientbench.studies.law import PUBLISHED, HeldOut, held_out, law_of
from efficientbench.studies.runs import MatchLeft, RunState, Study, StudyRun, TargetCost
from efficientbench.studies.suite import StudySection
from efficientbench.studies.target_costs import costs_of
from efficientbench.studies.verdict import Standing, Verdict, judge

EDITION = 4
"""The edition of the fit: verdicts of one edition come from the same priors and rules."""
BUDGETS_OF_A_LOSS = 3
"""Budgets without which the loss at the target is not told; differences need LEAST_BUDGETS."""


@dataclass(frozen=True)
class RunLine:
    """One run of the ladder."""

    variant: str
    cell: Cell
    seed: int
    state: RunState
    loss: float | None
    """In nats a token; None unless the run is complete."""
    learning_rate: float | None
    folder: str
    reason: str | None
    """Why the loss is absent."""


@dataclass(frozen=True)
class Findings:
    """What the runs say once there are enough of them."""

    verdict: Verdict
    named: str | None
    """The variant to pretrain; None where the best cannot be told."""
    cheapest: dict[str, str | None]
    """Unit → the cheapest variant to the baseline's loss; None where it cannot be told."""
    further: Further | None
    """What would help; None where a variant is named, or where those left are level."""
    law: tuple[float, ...] | None
    """E, A, B, alpha and beta of the variants' mean."""
    no_loss: str | None
    """Why the losses at the target are not told; None where they are."""
    no_bits_per_byte: str | None
    """Why they are not told in bits per byte either; None where a loss is, or where `no_loss` says it."""
    outliers: tuple[str, ...]
    """Runs that the law leaves out."""
    held_out: HeldOut | None
    no_held_out: str | None
    """Why the largest size was not predicted."""
    differences: tuple[CellDifference, ...]
    trends: tuple[Trend, ...]
    crossings: tuple[Crossing, ...]
    ranking: Ranking
    noise: tuple[Noise, ...]
    serving: dict[str, dict[str, float]]
    """Unit → variant → the cost of a served token, or the bytes of its cache."""
    cost_sources: dict[str, str]
    """Unit → how it is known, or why it is not."""
    prior: Prior
    """The prior of the differences, with the noise that was fitted."""


@dataclass(frozen=True)
class Answer:
    """What a study answers."""

    edition: int
    """Edition of the fit."""
    name: str
    section: StudySection
    target: Cell
    device_name: str | None
    price_per_hour: float | None
    cautions: tuple[str, ...]
    """What a reader must know before the verdict."""
    placeless: dict[str, str]
    """Variant without a place in the verdict → why."""
    no_verdict: str | None
    """Why there is no verdict; None where there is one."""
    findings: Findings | None
    """None without a verdict."""
    costs: dict[str, TargetCost]
    slope: float | None
    """gamma of ln(rate) over ln N; None for fixed rates."""
    searches: dict[str, dict[float, float | None]]
    """Run → learning rate → loss in nats, None where it diverged."""
    matching: dict[str, MatchLeft]
    """Run → what matching came to."""
    runs: tuple[RunLine, ...]

    @property
    def complete(self) -> int:
        """How many runs of the plan are complete."""
        return sum(run.state == "complete" for run in self.runs)


def answer(study: Study) -> Answer:
    """Return the answer of a study, from the runs that are complete.

    Raises MetricsError: the runs were validated on different texts.
    """
    _check_text(study)
    whole = study.ladder
    placeless = _placeless(study, whole)
    ladder, no_verdict = _judged(study, whole, placeless)
    findings = None if ladder is None else _findings(study, ladder)
    return Answer(
        edition=EDITION,
        name=study.name,
        section=study.section,
        target=study.target,
        device_name=study.device_name,
        price_per_hour=study.price_per_hour,
        cautions=tuple(_cautions(study, ladder, findings)),
        placeless=placeless,
        no_verdict=no_verdict,
        findings=findings,
        costs=dict(study.costs),
        slope=study.slope,
        searches={
            "_".join(of): {rate: losses[rate] if math.isfinite(losses[rate]) else None for rate in sorted(losses)}
            for of, losses in study.searches.items()
        },
        matching={"_".join(of): left for of, left in study.matching.items()},
        runs=tuple(
            RunLine(
                run.variant, run.cell, run.seed, run.state, run.loss, run.learning_rate, str(run.folder), run.reason
            )
            for run in study.runs
        ),
    )


def _cautions(study: Study, ladder: Ladder | None, findings: Findings | None) -> list[str]:
    if ladder is None or findings is None:
        return of_plan(study)
    return [*of_plan(study), *of_fit(study, ladder, findings.held_out, findings.no_held_out, findings.no_loss)]


def _check_text(study: Study) -> None:
    texts: dict[str | None, str] = {}
    for run in study.runs:
        if run.record is not None and run.state == "complete":
            texts.setdefault(run.record.validation_text, str(run.folder))
    if len(texts) > 1:
        raise MetricsError(
            f"{' and '.join(list(texts.values())[:2])}: their losses are of different validation texts, and are not "
            "compared: train the runs of a study on one text"
        )


def _placeless(study: Study, ladder: Ladder) -> dict[str, str]:
    """Return each variant that has no place in the verdict, and why."""
    found = {}
    for variant in ladder.variants:
        lacking = ladder.lacking(variant)
        if lacking is None:
            continue
        failed = {run.cell.size: run.reason for run in study.runs if run.variant == variant and run.state != "complete"}
        reasons = "; ".join(f"{size}: {reason}" for size, reason in failed.items() if reason)
        found[variant] = study.unsearched.get(variant) or "; ".join(filter(None, (lacking, reasons)))
    return found


def _judged(study: Study, whole: Ladder, placeless: dict[str, str]) -> tuple[Ladder | None, str | None]:
    """Return the ladder that the verdict is made from, or why there is none."""
    kept = [name for name in whole.variants if name not in placeless]
    if study.section.baseline in placeless:
        return None, f"{study.section.baseline}, the baseline, has no place: {placeless[study.section.baseline]}"
    if len(kept) < 2:
        return None, f"only {kept[0]} has a place: a verdict needs 2 variants"
    ladder = whole.part(variants=kept)
    ladder = ladder.part(cells=np.asarray(ladder.present.any(axis=1)))
    counts = np.bincount(ladder.size_of)
    if (counts >= LEAST_BUDGETS).sum() < LEAST_SIZES:
        shared = ", ".join(f"{size} {count}" for size, count in zip(ladder.sizes, counts, strict=True))
        return None, (
            f"all variants together have too few cells (budgets at each size: {shared}): a ladder needs "
            f"{LEAST_BUDGETS} budgets at {LEAST_SIZES} sizes"
        )
    return ladder, None


def _findings(study: Study, ladder: Ladder) -> Findings:
    target = study.target
    prior = fitted_to(Prior(), ladder)
    effects = Fit(ladder, prior).draw(ladder.losses)
    law, numbers, no_loss = PUBLISHED, None, None
    outliers: tuple[str, ...] = ()
    try:
        law, outlying = law_of(ladder)
        numbers, outliers = law.mean, tuple(_named_outliers(ladder, outlying))
        budgets = max(np.bincount(ladder.size_of))
        if budgets < BUDGETS_OF_A_LOSS:
            no_loss = f"{budgets} budgets at a size: a loss at the target needs {BUDGETS_OF_A_LOSS}, a difference 2"
    except MetricsError as error:
        no_loss = str(error)
    costs, sources = costs_of(study, ladder.variants)
    verdict = judge(effects, law, (target.parameters, target.tokens), costs)
    complete = [run for run in study.runs if run.state == "complete"]
    bits_per_nat, no_bits_per_byte = _bits_per_nat(complete)
    if no_loss is not None:
        verdict = replace(verdict, standings=tuple(replace(each, loss=None) for each in verdict.standings))
        no_bits_per_byte = None
    elif bits_per_nat is not None:
        verdict = replace(verdict, standings=tuple(_in_bits(each, bits_per_nat) for each in verdict.standings))
    predicted, no_held_out = None, None
    try:
        predicted = held_out(ladder)
    except MetricsError as error:
        no_held_out = str(error)
    undecided = verdict.best.named is None and not verdict.is_level
    return Findings(
        verdict=verdict,
        named=verdict.best.named,
        cheapest={unit: choice.named for unit, choice in verdict.cheapest.items()},
        further=what_would_help(ladder, effects, prior, target, complete) if undecided else None,
        law=numbers,
        no_loss=no_loss,
        no_bits_per_byte=no_bits_per_byte,
        outliers=outliers,
        held_out=predicted,
        no_held_out=no_held_out,
        differences=tuple(differences(ladder, effects)),
        trends=tuple(trends(ladder, effects, target)),
        crossings=tuple(all_crossings(ladder, effects, target)),
        ranking=ranking(ladder),
        noise=tuple(noises(ladder)),
        serving={unit: dict(zip(ladder.variants, each.tolist(), strict=True)) for unit, each in costs.serving.items()},
        cost_sources=sources,
        prior=prior,
    )


def _bits_per_nat(complete: Sequence[StudyRun]) -> tuple[float | None, str | None]:
    """Return a loss of one nat a token in bits per byte, or why that is not known; all runs have one text."""
    record = complete[0].record
    assert record is not None
    if record.bits_per_byte is None or record.validation_loss is None:
        return None, record.unavailable["bits_per_byte"]
    return record.bits_per_byte / record.validation_loss, None


def _in_bits(standing: Standing, bits_per_nat: float) -> Standing:
    assert standing.loss is not None
    return replace(standing, bits_per_byte=standing.loss.times(bits_per_nat))


def _named_outliers(ladder: Ladder, outlying: np.ndarray) -> Sequence[str]:
    return [
        f"{ladder.variants[variant]}_{ladder.cells[cell].size} at {ladder.cells[cell].tokens:.3g} tokens, "
        f"{ladder.losses[variant, cell, seed]:.3f}"
        for variant, cell, seed in zip(*outlying.nonzero(), strict=True)
    ]
