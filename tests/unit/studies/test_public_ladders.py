"""The fits against runs that others published. No number of the fits was chosen to suit these."""

from __future__ import annotations

import ast
import csv
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from efficientbench.metrics.formulas.ratio import Side, make_ratio
from efficientbench.studies.effects import Fit, Prior, fitted_to
from efficientbench.studies.ladder import Cell, Ladder, Result
from efficientbench.studies.law import Runs, fit_law, outliers
from efficientbench.studies.simulate import NAMED, shares_best

TEXTS = ("paloma_c4_en", "paloma_dolma", "paloma_falcon", "paloma_ptb", "paloma_redpajama")
DRAWS = 4000
OTHER_TEXT = Prior(scales=(0.15, 0.5, 1.5, 5.0, 20.0))
"""For losses on other text than the models learned, which differ more."""


@pytest.fixture(scope="module")
def public_runs(shared_data: Path) -> Path:
    return shared_data / "public_runs"


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_chinchillas_figure_gives_its_published_law_once_its_outliers_are_left_out(public_runs: Path) -> None:
    rows = _rows(public_runs / "chinchilla_figure_4.csv")
    parameters, flops, losses = (
        np.array([float(row[key]) for row in rows]) for key in ("Model Size", "Training FLOP", "loss")
    )
    alone = np.arange(len(rows))
    runs = Runs(losses, parameters, flops / 6 / parameters, alone, alone)
    found = outliers(runs)
    # The five that the refit (arXiv 2404.10102) leaves out are the first of the file.
    assert found[:5].all()
    assert found.sum() <= 12
    e, _, _, alpha, beta = fit_law(runs.part(~found)).mean
    assert e == pytest.approx(1.8172, abs=0.03)
    assert alpha == pytest.approx(0.3478, abs=0.02)
    assert beta == pytest.approx(0.3658, abs=0.02)


def test_three_training_sets_get_no_wrong_name_on_five_texts_at_two_targets(public_runs: Path) -> None:
    losses: dict[str, list[Result]] = defaultdict(list)
    truth: dict[tuple[str, float], dict[str, float]] = defaultdict(dict)
    for file in sorted((public_runs / "training_sets").glob("*.json")):
        run = json.loads(file.read_text(encoding="utf-8"))
        about, name = run["hyperparameters"], run["dataset_name"]
        size, tokens, ratio = float(about["params"]), float(about["tokens"]), about["chinchilla_multiplier"]
        for each in ast.literal_eval(run["results"]) if isinstance(run["results"], str) else run["results"]:
            text = next((text for text in TEXTS if text in str(each["val_data"])), None)
            # From 20 tokens per parameter on, as far as all three have: below, the rise of the rate is most of a run.
            if text and 50e6 < size < 1e9 and 1 <= ratio <= 16:
                losses[text].append(Result(name, Cell(f"{size:.0f}", size, tokens), 0, each["loss"]))
            elif text and size > 1e9 and ratio == 1:
                truth[text, size][name] = each["loss"]
    assert len(truth) == 10
    names = sorted({result.variant for result in losses[TEXTS[0]]})
    named, held, wrong = 0, 0, []
    for (text, size), measured in truth.items():
        ladder = Ladder.of(losses[text], names)
        effects = Fit(ladder, fitted_to(OTHER_TEXT, ladder)).draw(ladder.losses)
        drawn = effects.at(size, 20 * size)
        best = shares_best(drawn)
        first = names[int(best.argmax())]
        assert measured[first] == min(measured.values()), "the right one is first, named or not"
        named += best.max() >= NAMED
        wrong += [text] if best.max() >= NAMED and measured[first] > min(measured.values()) else []
        for place, name in enumerate(names[1:], start=1):
            low, high = np.quantile(drawn[:, place] - drawn[:, 0], (0.025, 0.975))
            held += bool(low <= measured[name] - measured[names[0]] <= high)
    assert wrong == []
    assert held == 13, "docs/study.md, What goes wrong: of 20 intervals"
    assert named >= 5


def test_real_pairs_of_equal_runs_are_named_no_more_often_than_chance(public_runs: Path) -> None:
    groups: dict[str, list[float]] = defaultdict(list)
    for row in _rows(public_runs / "equal_runs_124M.csv"):
        groups[row["group"]].append(float(row["final_validation_loss"]))
    chance = np.random.default_rng(0)
    names = sorted(groups)
    drawn = np.stack(
        [chance.choice(groups[names[place]], 6, replace=False) for place in chance.integers(len(names), size=DRAWS)]
    )
    sides = drawn.reshape(DRAWS, 2, 1, 3)
    # One cell: its difference is e, whatever its size, and contains what a size's misfit would be.
    one_cell = Ladder(("one", "other"), (Cell("124M", 124e6, 2.5e9),), np.zeros((2, 1, 3)), trunks=False)
    fit = Fit(one_cell, Prior(misfit_steps=(0.0,)))
    named = 0
    for some in np.array_split(sides, 20):
        weights, means, variances = fit.moments(fit.values(some), (124e6, 2.5e9))
        mean = (weights * means[..., 0]).sum(axis=1)
        spread = np.sqrt((weights * (variances[:, 0] + (means[..., 0] - mean[:, None]) ** 2)).sum(axis=1))
        named += int((np.abs(mean) > 1.96 * spread).sum())
    assert 0 < named <= 0.055 * DRAWS
    claimed = 0
    for one, other in sides[:, :, 0]:
        found = make_ratio(
            "validation_loss", Side.of(one.tolist(), counted=True), Side.of(other.tolist(), counted=True)
        )
        claimed += found.p_value is not None and found.p_value < 0.05
    assert 0 < claimed <= 0.055 * DRAWS
