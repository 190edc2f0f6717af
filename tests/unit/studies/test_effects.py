"""The fit of differences against plain linear algebra, and what runs that are missing do to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.simulated_studies import LAWS, TARGET, plan, simulate

from efficientbench.studies.effects import Fit, Prior, contrasts, fitted_to, seed_noise
from efficientbench.studies.ladder import Cell, Ladder, Result


def _by_plain_algebra(ladder: Ladder, fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights [components] and the means of e, a, b [components, contrasts, 3], by whole covariances.

    Those of all contrasts and runs together, in Helmert's contrasts, which deviate together.
    """
    values = contrasts(len(ladder.variants)) @ ladder.losses[:, ladder.present]
    together = np.eye(len(values)) if fit.prior.unevenness is None else np.array(fit.prior.unevenness)
    cells, seeds = ladder.present.nonzero()
    size = ladder.size_of[cells]
    same_size = size[:, None] == size
    same_trunk = same_size & (seeds[:, None] == seeds)
    logs, means = [], []
    for scale, misfit, alpha, beta, noise, ratio in fit.components:
        terms = np.stack(
            [
                np.ones(len(cells)),
                (ladder.parameters[cells] / fit.origin[0]) ** -alpha,
                (ladder.tokens[cells] / fit.origin[1]) ** -beta,
            ],
            axis=1,
        )
        spread = np.diag(np.square(np.array(fit.prior.effects) * scale))
        own = misfit**2 * same_size + noise**2 * (np.eye(len(cells)) + ratio * same_trunk)
        covariance = np.kron(np.eye(len(values)), terms @ spread @ terms.T) + np.kron(together, own)
        solved = np.linalg.solve(covariance, values.ravel())
        half = 0.5 * np.linalg.slogdet(covariance)[1]
        logs.append(-0.5 * float(values.ravel() @ solved) - half - 0.5 * (misfit / fit.prior.misfit) ** 2)
        means.append(solved.reshape(values.shape) @ terms @ spread)
    weights = np.exp(np.array(logs) - max(logs))
    turned = fit.contrasts @ contrasts(len(ladder.variants)).T
    return weights / weights.sum(), turned @ np.stack(means)


@pytest.mark.parametrize("uneven", [False, True])
def test_the_posterior_is_that_of_whole_covariances_also_with_missing_runs(uneven: bool) -> None:
    losses = simulate(LAWS, 1).losses[0]
    losses[1, 3, 2] = losses[0, 8, 0] = np.nan
    ladder = replace(plan(3), losses=losses)
    fit = Fit(ladder, replace(Prior(), unevenness=((2.0, 0.7), (0.7, 0.745))) if uneven else None)
    assert ladder.present.sum() == 25
    weights, means = fit.posterior(fit.values(losses)[None])
    expected, expected_means = _by_plain_algebra(ladder, fit)
    assert weights[0] == pytest.approx(expected, abs=1e-9)
    assert means[0, ..., :3] == pytest.approx(expected_means, abs=1e-9)


def test_draws_have_the_mean_and_spread_of_the_mixture() -> None:
    losses = simulate(LAWS, 1).losses[0]
    fit = Fit(replace(plan(3), losses=losses))
    weights, means, variances = fit.moments(fit.values(losses)[None], TARGET)
    mean = weights[0] @ means[0]
    deviation = np.sqrt(weights[0] @ (variances + (means[0] - mean) ** 2))
    drawn = fit.draw(losses, draws=20_000).at(*TARGET) @ fit.contrasts.T
    assert drawn.mean(axis=0) == pytest.approx(mean, abs=4 * deviation.max() / 20_000**0.5)
    assert drawn.std(axis=0) == pytest.approx(deviation, rel=0.05)


def test_what_all_variants_share_changes_no_difference() -> None:
    losses = simulate(LAWS, 1).losses[0]
    ladder = replace(plan(3), losses=losses)
    shared = replace(ladder, losses=losses + np.random.default_rng(1).normal(0, 1, losses.shape[1:]))
    one, other = (Fit(each, fitted_to(Prior(), each)).draw(each.losses).at(*TARGET) for each in (ladder, shared))
    assert one == pytest.approx(other, abs=1e-9)
    assert one.sum(axis=1) == pytest.approx(0, abs=1e-9)


def test_the_order_of_the_variants_changes_nothing_but_chance() -> None:
    losses = simulate(LAWS, 1).losses[0]
    fit = Fit(plan(3))
    ahead, back = (fit.draw(each, draws=20_000).at(*TARGET) for each in (losses, losses[::-1]))
    assert ahead.mean(axis=0) == pytest.approx(back.mean(axis=0)[::-1], abs=2e-4)


def test_noise_beyond_the_priors_grid_moves_the_grid() -> None:
    losses = np.random.default_rng(0).normal(3, 0.05, (2, 9, 3))
    noisy = replace(plan(2), losses=losses)
    found = seed_noise(noisy)
    assert found == pytest.approx(0.05, rel=0.3)
    noise = fitted_to(Prior(), noisy).noise
    assert noise[0] < found < noise[-1]
    quiet = replace(plan(2), losses=simulate(replace(LAWS, variants=2), 1).losses[0])
    assert fitted_to(Prior(), quiet) == Prior()


def test_variants_that_lie_far_apart_do_so_at_the_target() -> None:
    """As models without positions, or that see one token, beside others: within the usual scales this was noise."""
    ladder = plan(3)

    def behind(parameters: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray | float:
        return 0.9 - 0.2 * (parameters / 1e8) ** -0.34 - 0.25 * (tokens / 2e9) ** -0.36

    losses = simulate(LAWS, 1).losses[0]
    losses[2] += np.asarray(behind(ladder.parameters, ladder.tokens))[:, None]
    ladder = replace(ladder, losses=losses)
    prior = fitted_to(Prior(), ladder)
    assert prior.scales[:3] == Prior().scales
    drawn = Fit(ladder, prior).draw(losses).at(*TARGET)
    apart = drawn[:, 2] - drawn[:, :2].mean(axis=1)
    assert apart.mean() == pytest.approx(float(behind(*TARGET)), abs=0.05)
    assert apart.std() < 0.05
    assert (drawn.argmax(axis=1) == 2).all()


def test_a_variant_that_follows_no_law_blurs_its_own_differences_alone() -> None:
    losses = simulate(replace(LAWS, variants=4), 1).losses[0]
    losses[3] += np.random.default_rng(0).normal(0, 0.05, losses.shape[1:])
    ladder = replace(plan(4), losses=losses)
    prior = fitted_to(Prior(), ladder)
    assert prior.unevenness is not None
    assert np.linalg.det(np.array(prior.unevenness)) == pytest.approx(1)
    uneven, even = (Fit(ladder, each).draw(losses).at(*TARGET) for each in (prior, replace(prior, unevenness=None)))
    clear, blurred = ((uneven[:, 0] - uneven[:, other]).std() for other in (1, 3))
    assert clear < 0.5 * blurred
    assert clear < 0.7 * (even[:, 0] - even[:, 1]).std()


def test_the_order_of_uneven_variants_changes_nothing_but_chance() -> None:
    losses = simulate(replace(LAWS, noisy=4), 1).losses[0]
    ahead, back = (
        Fit(plan(3), fitted_to(Prior(), replace(plan(3), losses=each))).draw(each, draws=20_000).at(*TARGET)
        for each in (losses, losses[::-1])
    )
    assert ahead.mean(axis=0) == pytest.approx(back.mean(axis=0)[::-1], abs=2e-4)
    assert ahead.std(axis=0) == pytest.approx(back.std(axis=0)[::-1], rel=0.05)


def test_one_seed_shows_no_noise() -> None:
    assert seed_noise(plan(2, seeds=1)) is None
    assert fitted_to(Prior(), plan(2, seeds=1)) == Prior()


def _results(variant: str, missing: str = "") -> list[Result]:
    cells = [Cell(f"{n}M", n * 1e6, n * 1e6 * ratio) for n in (50, 125, 350) for ratio in (10, 20, 40)]
    return [Result(variant, cell, seed, 3.0) for cell in cells for seed in (1, 2) if cell.size != missing]


def test_a_variant_without_a_size_has_no_place_and_takes_none_from_the_others() -> None:
    ladder = Ladder.of([*_results("gqa"), *_results("mla"), *_results("nsa", "350M")], ("gqa", "mla", "nsa"))
    assert [ladder.lacking(name) for name in ("gqa", "mla")] == [None, None]
    assert ladder.lacking("nsa") == "2 sizes have 2 budgets or more (50M, 125M), and a ladder needs 3"
    assert ladder.present.sum() == 12
    assert ladder.part(variants=["gqa", "mla"]).present.sum() == 18


def test_a_ladder_orders_cells_by_size_whatever_the_order_of_runs() -> None:
    ladder = Ladder.of(_results("gqa")[::-1], ("gqa",))
    assert ladder.sizes == ("50M", "125M", "350M")
    assert (np.diff(ladder.parameters) >= 0).all()
    assert ladder.size_of.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
