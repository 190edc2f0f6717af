"""The fit against studies whose truth is known: whom it names, and how often its intervals hold.

The bars are of 200 studies, whose seeds are fixed. The first 40 of them are in the default tests, with a fifth of the
bars and some room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from support.simulated_studies import (
    FLAWS,
    LAWS,
    MISTUNED,
    RULE,
    SIZES,
    TARGET,
    TIE,
    Outcome,
    Studies,
    Truth,
    outcome,
    simulate,
)

from efficientbench.studies.effects import Fit, Prior, fitted_to
from efficientbench.studies.findings import ranking
from efficientbench.studies.law import Runs, fit_law, held_out
from efficientbench.studies.simulate import shares_best

ALL, SOME = 200, 40
MORE_SIZES = SIZES | {"700M": 700e6}


@dataclass(frozen=True)
class Row:
    """A kind of studies, and what is asked of 200 of them."""

    truth: Truth
    named_most: int = ALL
    wrong_most: int = ALL
    named_least: int = 0
    covered_least: int = 0
    seeds: int = 3
    four_sizes: bool = False

    def __str__(self) -> str:
        sizes = ", 4 sizes" if self.four_sizes else ""
        return f"{self.truth.name}, {self.truth.gap:g} SE, {self.truth.variants} variants, {self.seeds} seeds{sizes}"

    def studies(self, count: int) -> Studies:
        """Return the first studies of the row."""
        return simulate(self.truth, count, self.seeds, sizes=MORE_SIZES if self.four_sizes else None)


ROWS = [
    *(Row(TIE, named_most=4, seeds=seeds) for seeds in (1, 3, 5)),
    Row(TIE, named_most=4, four_sizes=True),
    Row(LAWS, named_most=8, covered_least=181),
    Row(RULE, named_most=8, covered_least=170),
    Row(replace(LAWS, gap=1), wrong_most=6, covered_least=181),
    Row(replace(LAWS, gap=3), wrong_most=6, named_least=75, covered_least=181),
    Row(replace(LAWS, gap=4), wrong_most=6, named_least=130, covered_least=181),
    Row(replace(LAWS, gap=3, variants=2), wrong_most=6, named_least=135, covered_least=181),
    Row(replace(LAWS, gap=4, variants=2), wrong_most=6, named_least=165, covered_least=181),
    *(Row(replace(flaw, name=name), named_most=12, covered_least=170) for name, flaw in FLAWS.items()),
    *(Row(replace(flaw, name=name, gap=3), wrong_most=6, covered_least=170) for name, flaw in FLAWS.items()),
]


def _hold(row: Row, found: Outcome, count: int) -> None:
    share = count / ALL
    room = 0 if count == ALL else 2
    assert found.named <= row.named_most * share + room, found
    assert found.wrong <= row.wrong_most * share + room, found
    assert found.named >= row.named_least * share - 2 * room, found
    assert found.covered >= row.covered_least * share - room, found


# All of them in the proof.
@pytest.mark.parametrize("row", ROWS[::4], ids=str)
def test_forty_studies_are_judged_as_their_truth_is(row: Row) -> None:
    _hold(row, outcome(row.studies(SOME)), SOME)


@pytest.mark.proof
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_two_hundred_studies_are_judged_as_their_truth_is(row: Row) -> None:
    _hold(row, outcome(row.studies(ALL)), ALL)


@pytest.mark.proof
def test_one_noisy_variant_hides_less_of_the_others_than_if_all_were_taken_for_even() -> None:
    studies = simulate(replace(FLAWS["one noisy variant"], name="one noisy variant", gap=3, variants=5), ALL)
    uneven, even = (outcome(studies, uneven=each) for each in (True, False))
    assert uneven.named > 1.1 * even.named
    assert uneven.covered >= max(even.covered, 181)
    assert uneven.wrong == even.wrong == 0


@pytest.mark.proof
@pytest.mark.parametrize(("gap", "named"), [(0, 16), (1, ALL), (3, ALL), (4, ALL)])
def test_rates_that_miss_by_15_percent_cost_the_intervals_what_the_pages_warn_of(gap: float, named: int) -> None:
    found = outcome(simulate(replace(MISTUNED, gap=gap), ALL))
    # 146 to 156 in docs/study.md; 181 are asked of rates by the rule.
    assert 0.7 * ALL <= found.covered <= 0.8 * ALL
    assert found.wrong <= 6
    assert found.named <= named


@pytest.mark.proof
@pytest.mark.parametrize("truth", [LAWS, *FLAWS.values()], ids=["laws", *FLAWS])
def test_the_fit_finds_the_best_more_often_than_the_order_at_the_largest_size(truth: Truth) -> None:
    """As DataDecide (arXiv 2504.11393) asks of laws: whether they are worth more than the largest size alone."""
    studies = simulate(replace(truth, gap=1), ALL)
    fitted = largest = 0
    for losses, at_target in zip(studies.losses, studies.at_target, strict=True):
        ladder = replace(studies.plan, losses=losses)
        best = shares_best(Fit(ladder, fitted_to(Prior(), ladder)).draw(losses).at(*TARGET)).argmax()
        first = list(ladder.variants).index(next(iter(ranking(ladder).losses)))
        fitted, largest = (
            count + bool(at_target[place] == at_target.min()) for count, place in ((fitted, best), (largest, first))
        )
    # 143 to 191, and 74 to 109, in docs/study.md.
    assert fitted >= 140
    assert largest <= 115


def _law_holds(count: int) -> tuple[int, int]:
    """Return in how many studies the intervals of the loss at the target, and of the held-out size, hold."""
    studies = simulate(LAWS, count)
    target = held = 0
    for losses, truth in zip(studies.losses, studies.at_target, strict=True):
        ladder = replace(studies.plan, losses=losses)
        low, high = np.quantile(fit_law(Runs.of(ladder)).at(*TARGET), (0.025, 0.975))
        target += bool(low <= truth.mean() <= high)
        held += held_out(ladder).is_inside
    return target, held


def test_the_loss_at_the_target_and_of_a_held_out_size_lie_in_their_intervals() -> None:
    assert min(_law_holds(8)) >= 6


@pytest.mark.proof
def test_the_loss_at_the_target_and_of_a_held_out_size_lie_in_181_of_200_intervals() -> None:
    assert min(_law_holds(ALL)) >= 181
