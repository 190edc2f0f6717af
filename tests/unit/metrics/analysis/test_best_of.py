"""The best of a grid of rates: chosen on one half of the text, judged on the other, the choice corrected for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.metrics_parts import make_record, printed
from typer.testing import CliRunner

from efficientbench.cli.app import app
from efficientbench.metrics import MetricsError
from efficientbench.metrics.analysis.compare import Comparison, compare
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.records.record import write_record
from efficientbench.metrics.report.comparison import print_comparison

RATE = "training.learning_rate"
RATES = (0.001, 0.003, 0.01)


def grid(variant: str, losses: Sequence[float], chance: np.random.Generator, spread: float = 0.01) -> list[Group]:
    """Return a row of three runs for each rate, whose losses on 20 sequences vary by run and by sequence."""
    text = np.random.default_rng(0).normal(0, 0.3, 20)
    rows = []
    for rate, loss in zip(RATES, losses, strict=True):
        runs = []
        for seed in range(3):
            sequences = loss + text + chance.normal(0, spread) + chance.normal(0, 0.02, 20)
            config = {"training": {"seed": seed, "learning_rate": rate}, "model": {"attention": {"kind": variant}}}
            runs.append(
                make_record(
                    {
                        **{"variant": variant, "run": f"{variant}_1.5B__learning_rate={rate}", "seed": seed},
                        **{"validation_loss": float(sequences.mean()), "validation_text": "aa", "tokens": 1000},
                        **{"validation_sequence_losses": sequences.tolist(), "config": config},
                    }
                )
            )
        rows.append(Group(tuple(runs)))
    return rows


def compared(first: list[Group], second: list[Group]) -> Comparison:
    return compare(first[0], second[0], neighbours=[*first[1:], *second[1:]], best=[RATE])


def test_each_side_is_compared_at_its_own_best_rate_by_the_other_half_of_the_text() -> None:
    chance = np.random.default_rng(1)
    first, second = grid("gqa", (4.2, 4.0, 4.3), chance), grid("mla", (4.1, 3.9, 3.5), chance)
    comparison = compared(first, second)
    assert [best.chosen for best in comparison.grids] == [f"{RATE} 0.003", f"{RATE} 0.01"]
    [ratio] = [each for each in comparison.ratios if each.metric == "validation_loss"]
    halves = [[np.mean(run.validation_sequence_losses[1::2]) for run in row.records] for row in (first[1], second[2])]
    assert (ratio.first, ratio.second) == pytest.approx([np.mean(each) for each in halves])
    assert ratio.verdict.endswith("% less")
    text = printed(print_comparison, comparison, width=300)
    assert f"B: {RATE} 0.01 (tried: {RATE} 0.001; {RATE} 0.003; {RATE} 0.01)" in text
    assert "corrected for the choice" in text
    # The choice among three and three counts as nine comparisons.
    alone = compare(comparison.first, comparison.second, despite=["training"])
    [plain] = [each for each in alone.ratios if each.metric == "validation_loss"]
    assert ratio.p_value == pytest.approx(9 * (plain.p_value or 0))


def test_the_command_finds_the_grids_beside_both_folders(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    for row in (*grid("gqa", (4.2, 4.0, 4.3), chance), *grid("mla", (4.1, 3.9, 3.5), chance)):
        for run in row.records:
            write_record(run, tmp_path / row.name / f"seed_{run.seed}" / "record.json")
    folders = [str(tmp_path / f"{variant}_1.5B__learning_rate=0.001") for variant in ("gqa", "mla")]
    done = CliRunner().invoke(app, ["compare", *folders, "--best-of", RATE], env={"COLUMNS": "200"})
    assert (done.exit_code, f"A: {RATE} 0.003 (tried: " in done.output) == (0, True)
    refused = CliRunner().invoke(app, ["compare", *folders, "--best-of", RATE, "--fail-if", "validation_loss>1%"])
    assert refused.exit_code == 2


def test_a_grid_that_is_none_is_refused() -> None:
    chance = np.random.default_rng(2)
    first, second = grid("gqa", (4.0, 4.0, 4.0), chance), grid("mla", (4.0, 4.0, 4.0), chance)
    with pytest.raises(MetricsError, match="no run beside it differs in training.learning_rate alone"):
        compare(first[0], second[0], best=[RATE])
    with pytest.raises(
        MetricsError, match="model.layers is no key of gqa.* that changes what is learned: .*learning_rate"
    ):
        compare(first[0], second[0], neighbours=first[1:], best=["model.layers"])
    silent = [Group(tuple(run.model_copy(update={"validation_text": None}) for run in row.records)) for row in first]
    with pytest.raises(MetricsError, match="no losses of 4 sequences of one text"):
        compared(silent, second)


def test_grids_of_alike_models_are_told_apart_in_at_most_5_percent_of_sets() -> None:
    chance, sets, level = np.random.default_rng(3), 60, (4.0, 4.0, 4.0)
    claims = sum(
        any(ratio.measurable for ratio in compared(grid("gqa", level, chance), grid("mla", level, chance)).ratios)
        for _ in range(sets)
    )
    assert claims <= stats.binom.ppf(0.99, sets, 0.05)
