"""What a reader must know before the verdict of a study: the page begins with it."""

from __future__ import annotations

import numpy as np

from efficientbench.studies.effects import seed_noise
from efficientbench.studies.ladder import Ladder
from efficientbench.studies.law import HeldOut
from efficientbench.studies.rates import MOST_FURTHER
from efficientbench.studies.runs import Study
from efficientbench.studies.suite import REACH
from efficientbench.studies.words import cell_text, percent

MATCHED = {"flops": "FLOPs", "parameters": "parameters", "active": "active parameters"}
"""What a match makes equal, in words."""
UNMATCHED = 0.01
"""How far from the baseline's a matched figure may be without a caution."""

NOISY = 0.05
"""Standard deviation between seeds, in nats of a difference, from which on a cell is too noisy for the fit's priors."""


def of_plan(study: Study) -> list[str]:
    """Return what the plan and the state of its runs ask for."""
    return [*_incomplete(study), *_unmatched(study), *_rates(study), *_mixtures(study)]


def of_fit(
    study: Study, ladder: Ladder, held_out: HeldOut | None, no_held_out: str | None, no_loss: str | None
) -> list[str]:
    """Return what the fit asks for: an extrapolation too far, a law that does not hold, noise that nobody measured."""
    found = []
    largest = ladder.cells[-1]
    reach = study.target.parameters / largest.parameters
    if reach > REACH:
        found.append(
            f"The target, {study.target.size}, is {reach:.0f} times the largest size, {largest.size}: a study reaches "
            f"{REACH} times, and what lies beyond is a guess."
        )
    if held_out is not None and not held_out.is_inside:
        found.append(
            f"The law misses its held-out size: the loss at {held_out.size}, {held_out.measured:.3f}, lies outside "
            f"{held_out.low:.3f} to {held_out.high:.3f}, which the other sizes predict. Losses at the target may be as "
            "far off; differences rest on a fit of their own."
        )
    if no_held_out is not None:
        found.append(f"The largest size could not be held out: {no_held_out}.")
    if no_loss is not None:
        found.append(f"No loss is told at the target: {no_loss}.")
    if ladder.present.sum(axis=1).max() < 2:
        found.append(
            "One seed: the noise between runs was not measured and rests on the prior, "
            "a standard deviation of 0.0008 to 0.01 nats."
        )
    return [*found, *_noisy(ladder)]


def _noisy(ladder: Ladder) -> list[str]:
    found = []
    for place, cell in enumerate(ladder.cells):
        noise = seed_noise(ladder.part(cells=np.arange(len(ladder.cells)) == place))
        # A contrast of two variants is their difference over the root of 2.
        if noise is not None and noise * 2**0.5 > NOISY:
            found.append(f"{cell_text(cell)} ({noise * 2**0.5:.2f})")
    if not found:
        return []
    return [
        f"Differences between seeds spread too far, in nats: {'; '.join(found)}. The fit expects 0.014 at most. Runs "
        "of few steps or at high rates follow no law: give smaller batches, more tokens per parameter, or lower rates."
    ]


def _incomplete(study: Study) -> list[str]:
    if study.complete == len(study.runs):
        return []
    states = [run.state for run in study.runs]
    rest = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states) if state != "complete")
    return [f"Of {len(states)} runs {study.complete} are complete ({rest}); the answer is of these alone."]


def _unmatched(study: Study) -> list[str]:
    section = study.section
    if section.match != "none":
        apart = [
            f"{variant}_{size} {percent(found.left, '+.1f')}"
            for (variant, size), found in study.matching.items()
            if abs(found.left) > UNMATCHED
        ]
        what = f"{section.baseline}'s {MATCHED[section.match]}"
        return [f"Not within {percent(UNMATCHED)} of {what}: {', '.join(apart)}."] if apart else []
    base = study.costs[section.baseline].training_flops if section.baseline in study.costs else None
    flops = {name: cost.training_flops for name, cost in study.costs.items() if name != section.baseline}
    told = [f"{name} {percent(value / base - 1, '+.1f')}" for name, value in flops.items() if value and base]
    cost = f" Training FLOPs at the target, against {section.baseline}'s: {', '.join(told)}." if told else ""
    return [f"The variants are not matched: a better loss may be bought with more compute.{cost}"]


def _rates(study: Study) -> list[str]:
    ends = []
    for (variant, size), losses in study.searches.items():
        rates = sorted(losses)
        if variant in study.unsearched and len(rates) < 3 + MOST_FURTHER:
            continue  # not finished: its variant has no place yet, and says why
        if rates and min(rates, key=lambda rate: losses[rate]) in (rates[0], rates[-1]):
            ends.append(f"{variant}_{size} ({rates[0]:.2g} to {rates[-1]:.2g})")
    if not ends:
        return []
    return [
        f"The lowest loss lies at an end of the rates that were tried: {', '.join(ends)}. A variant with a wrong rate "
        "looks worse than it is."
    ]


def _mixtures(study: Study) -> list[str]:
    records = [(run.variant, run.record) for run in study.runs if run.record is not None]
    sparse = {variant for variant, record in records if record.section("model").get("moe") is not None}
    if not sparse:
        return []
    return [
        f"{', '.join(sorted(sparse))}: mixtures of experts. One fit for dense and sparse models together is untested."
    ]
