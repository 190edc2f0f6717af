"""Cost of a life: sums by hand, where two models meet against simulated measurements, and what is refused."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from rich.console import Console
from support.generated import failed_row, generation, phase, row
from support.metrics_parts import make_record
from typer.testing import CliRunner

from efficientbench.basics.errors import MetricsError
from efficientbench.cli.app import app
from efficientbench.metrics.analysis.generation import load_generated
from efficientbench.metrics.analysis.life_cost import Amount, Life, Lives, compare_lives, overtaking
from efficientbench.metrics.analysis.repeats import Group
from efficientbench.metrics.formulas.ratio import Estimate
from efficientbench.metrics.formulas.student import t_quantile_95
from efficientbench.metrics.records.generation.generation import GenerationRecord, write_generation
from efficientbench.metrics.records.record import RunRecord, write_record
from efficientbench.metrics.report.sections.lives import print_lives

GPU = "NVIDIA H100 80GB HBM3"


def trained(variant: str = "gqa", seed: int = 1234, **figures: object) -> RunRecord:
    """A run that trained on 3.6 million tokens in 1 hour on one device, for 2 J a token."""
    names = {"run": f"{variant}_1.5B", "variant": variant, "size": "1.5B", "seed": seed, "device_name": GPU}
    measured = {"tokens_per_s": 1000.0, "tokens_trained": 3_600_000, "energy_j_per_token": 2.0, "energy_scope": "gpu"}
    times = {"al_s": 0.1, "al_s_ci_low": 0.09, "al_s_ci_high": 0.11}
    return make_record({**names, **measured, **times, **figures})


def side(variant: str, *rows: object, **figures: object) -> tuple[Group, list[GenerationRecord]]:
    return Group((trained(variant, **figures),)), [generation(variant, rows=rows)]  # type: ignore[arg-type]


def lives(*sides: tuple[Group, list[GenerationRecord]], despite: tuple[str, ...] = ()) -> Lives:
    [found] = compare_lives(sides, despite)
    return found


ROWS = {
    "prefill": phase(2.0, 8 * 128, joules=0.5),
    "decode": phase(0.05, 8, joules=3.0),
}


def test_costs_match_sums_by_hand() -> None:
    found = lives(side("gqa", row("gqa", 128, 8, **ROWS)), side("mqa", row("mqa", 128, 8, **ROWS)))
    assert found.combination == (128, 8, 64)
    life, _ = found.costs["device hours"]
    assert life.training.value == 1.0
    # A request of 8 rows with 64 new tokens each: one prefill and 63 steps.
    assert life.token.value == pytest.approx((2.0 + 63 * 0.05) / 3600 / (8 * 64))
    joules, _ = found.costs["J"]
    assert joules.training.value == 7.2e6
    assert joules.token.value == pytest.approx((0.5 * 128 + 3.0 * 63) / 64)
    assert joules.after(1e6).value == pytest.approx(7.2e6 + 1e6 * (0.5 * 128 + 3.0 * 63) / 64)


def test_the_interval_of_a_single_run_comes_from_its_steps_and_requests() -> None:
    found = lives(side("gqa", row("gqa", 128, 8, **ROWS)), side("mqa", row("mqa", 128, 8, **ROWS)))
    life, _ = found.costs["device hours"]
    assert life.training.interval == pytest.approx((0.9, 1.1), rel=1e-4)
    # Of each phase the record has ±1 %; the parts are independent.
    request = life.token.times(8 * 64 * 3600)
    low, high = request.interval or (0.0, 0.0)
    variances = [(part * 0.01 / t_quantile_95(4)) ** 2 for part in (2.0, 63 * 0.05)]
    degrees = sum(variances) ** 2 / sum(variance**2 / 4 for variance in variances)
    assert (high - low) / 2 == pytest.approx(t_quantile_95(degrees) * math.sqrt(sum(variances)))
    joules, _ = found.costs["J"]
    assert joules.after(1e6).interval is None


def test_repeats_give_the_intervals_of_training_and_serving() -> None:
    joules = (1.9, 2.0, 2.1)
    group = Group(tuple(trained(seed=seed, energy_j_per_token=each) for seed, each in enumerate(joules)))
    made = [
        generation("gqa", seed=seed, rows=[row("gqa", 128, 8, **{**ROWS, "decode": phase(0.05, 8, joules=each)})])
        for seed, each in enumerate((2.9, 3.0, 3.1))
    ]
    first, _ = lives((group, made), (group, made)).costs["J"]
    margin = t_quantile_95(2) * 0.1 * 3.6e6 / math.sqrt(3)
    assert first.training.interval == pytest.approx((7.2e6 - margin, 7.2e6 + margin))
    margin = t_quantile_95(2) * 0.1 * 63 / 64 / math.sqrt(3)
    low, high = first.token.interval or (0.0, 0.0)
    assert (high - low) / 2 == pytest.approx(margin)


def life(training: float, token: float, noise: float = 0.0) -> Life:
    """With the same relative standard error of both, of very many values."""
    return Life(*(Amount(value, Estimate((value * noise) ** 2, 1e3)) for value in (training, token)))


def test_a_model_overtakes_where_the_costs_meet() -> None:
    found = overtaking(life(100, 3), life(200, 1))
    assert (found.tokens, found.before) == (50, 0)
    assert (found.low, found.high) == pytest.approx((50, 50))
    back = overtaking(life(200, 1), life(100, 3))
    assert (back.tokens, back.before) == (50, 1)
    for at in (49, 51):
        assert (life(100, 3).after(at).value < life(200, 1).after(at).value) == (at < 50)


@pytest.mark.parametrize(
    ("first", "second", "cheaper"),
    [
        ((100, 1), (200, 3), 0),
        ((200, 3), (100, 1), 1),
        ((100, 1), (100, 3), 0),
        ((2, 3), (1, 3), 1),
        ((1, 1), (1, 1), None),
    ],
)
def test_a_model_cheaper_in_training_and_serving_is_never_overtaken(
    first: tuple[float, float], second: tuple[float, float], cheaper: int | None
) -> None:
    found = overtaking(life(*first), life(*second))
    assert (found.tokens, found.before) == (None, cheaper)


def test_the_interval_of_the_meeting_point_covers_the_truth_in_95_percent() -> None:
    """Draw measurements around true costs whose meeting point is known."""
    chance, held, noise = random.Random(3), 0, 0.05
    true = (100.0, 3.0), (200.0, 1.0)
    for _ in range(1000):
        drawn = [[chance.gauss(value, value * noise) for value in side] for side in true]
        sides = [
            Life(*(Amount(got, Estimate((value * noise) ** 2, 1e3)) for got, value in zip(*pair, strict=True)))
            for pair in zip(drawn, true, strict=True)
        ]
        found = overtaking(*sides)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 50 <= found.high
    assert 0.93 < held / 1000 < 0.97


def test_the_meeting_point_has_no_upper_end_where_serving_costs_may_be_equal() -> None:
    found = overtaking(life(100, 1.02, noise=0.05), life(200, 1.0, noise=0.05))
    assert found.low is not None
    assert found.low > 0
    assert found.high == math.inf
    unknown = overtaking(Life(Amount(100), Amount(3)), Life(Amount(200), Amount(1)))
    assert (unknown.tokens, unknown.low, unknown.high) == (50, None, None)


def test_costs_that_cannot_be_added_have_a_reason() -> None:
    measured = side("gqa", row("gqa", 128, 8))
    found = lives(measured, side("mqa", row("mqa", 128, 8, joules=None)))
    assert "device hours" in found.costs
    assert found.missing["J"] == "prefill_energy_j_per_token: no sensor of energy"
    found = lives(measured, side("mqa", row("mqa", 128, 8), energy_scope="node"))
    assert found.missing["J"] == "mqa_1.5B: training has the energy of node, generation that of gpu"
    found = lives(measured, side("mqa", row("mqa", 128, 8), device_name="A100-SXM4-80GB"))
    assert "have different prices: A100-SXM4-80GB and NVIDIA H100 80GB HBM3" in found.missing["device hours"]


def test_measurements_under_different_conditions_are_refused_unless_allowed() -> None:
    measured = side("gqa", row("gqa", 128, 8))
    other = side("mqa", row("mqa", 128, 8))[0], [generation("mqa", rows=[row("mqa", 128, 8)], dtype="fp32")]
    with pytest.raises(MetricsError, match="different conditions: dtype: bf16 against fp32.* --despite dtype"):
        lives(measured, other)
    assert lives(measured, other, despite=("dtype",)).costs
    weights = other[0], [generation("mqa", rows=[row("mqa", 128, 8)], weights="step 500")]
    with pytest.raises(MetricsError, match="weights: random against a checkpoint's.* --despite weights"):
        lives(measured, weights)
    assert lives(measured, weights, despite=("weights",)).costs
    failed = side("mqa", failed_row(128, 8, "out of memory"), row("mqa", 2048, 1))
    with pytest.raises(MetricsError, match="prompt 128, batch 8, new 64 against prompt 2,048, batch 1, new 64"):
        lives(measured, failed)


def test_generation_of_another_model_than_the_trained_one_is_refused() -> None:
    measured = side("gqa", row("gqa", 128, 8))
    models = [{"model": {"layers": layers}} for layers in (28, 2)]
    group = Group((trained("mqa", config=models[0]),))
    assert lives(measured, (group, [generation("mqa", rows=[row("mqa", 128, 8)], config=models[0])])).costs
    with pytest.raises(MetricsError, match="mqa_1.5B: generation was measured of another model than was trained"):
        lives(measured, (group, [generation("mqa", rows=[row("mqa", 128, 8)], config=models[1])]))


def test_hours_of_different_devices_are_not_compared() -> None:
    other = "NVIDIA A100-SXM4-80GB"
    group = Group((trained("mqa", device_name=other),))
    made = [generation("mqa", rows=[row("mqa", 128, 8)], device_name=other)]
    found = lives(side("gqa", row("gqa", 128, 8)), (group, made), despite=("device",))
    assert set(found.costs) == {"J"}
    reason = f"hours of different devices have different prices: {GPU} and {other}"
    assert found.missing == {"device hours": reason}
    console = Console(width=160)
    with console.capture() as captured:
        print_lives([found], "an engine", 1e9, 2.5, console)
    assert f"n/a device hours: {reason}" in captured.get()
    assert "currency" not in captured.get()


def test_doubtful_joules_are_not_added() -> None:
    doubt = "the counter gives 3 J, and its polled power 9 J: one of them is wrong"
    measured = side("gqa", row("gqa", 128, 8, **ROWS))
    doubted = phase(0.05, 8, joules=3.0, energy_doubt=doubt)
    for other in (
        side("mqa", row("mqa", 128, 8, **{**ROWS, "decode": doubted})),
        side("mqa", row("mqa", 128, 8, **ROWS), energy_doubt=doubt),
    ):
        found = lives(measured, other)
        assert set(found.costs) == {"device hours"}
        assert found.missing == {"J": f"mqa_1.5B: {doubt}"}


def test_the_text_names_engine_meeting_point_and_intervals() -> None:
    first, second = (
        side("gqa", row("gqa", 128, 8, **ROWS)),
        side("mqa", row("mqa", 128, 8, **{**ROWS, "decode": phase(0.025, 8, joules=1.0)}), tokens_trained=7_200_000),
    )
    console = Console(width=160)
    with console.capture() as captured:
        print_lives([lives(first, second)], first[1][0].engine, 1e9, 2.5, console)
    text = " ".join(captured.get().split())
    assert "A life: the training and 1e+09 served tokens" in text
    assert "training, currency 2.5 2.25 to 2.75 5 4.5 to 5.5" in text
    # 3.6 million tokens more for 2 J each; a served token for 2 · 63 / 64 J less.
    assert "J: B overtakes A from 3.66M served tokens on." in text
    hours = 3600 * 8 * 64 / (63 * 0.025)
    assert f"device hours: B overtakes A from {hours / 1e6:.2f}M served tokens on (95 %: " in text
    assert "Engine: efficientbench: one static batch" in text
    assert "no figures of vLLM's" in text


def test_the_command_adds_lives_to_a_comparison(tmp_path: Path) -> None:
    for variant in ("gqa", "mqa"):
        write_record(trained(variant), tmp_path / variant / "record.json")
    words = ["compare", str(tmp_path / "gqa"), str(tmp_path / "mqa"), "--served-tokens", "1e12"]
    with pytest.raises(MetricsError, match="holds no generation.json: efficientbench generate .*gqa --measure"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    for variant in ("gqa", "mqa"):
        write_generation(generation(variant), tmp_path / variant / "generation.json")
    assert len(load_generated(tmp_path / "gqa")) == 1
    done = CliRunner().invoke(app, [*words, "--price-per-hour", "2"], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert done.output.count("life, currency") == 6
    assert CliRunner().invoke(app, [*words[:3], "--price-per-hour", "2"]).exit_code == 2
    write_generation(generation("mqa", weights="step 500"), tmp_path / "mqa" / "generation.json")
    assert CliRunner().invoke(app, words).exit_code != 0
    allowed = ["--despite", "weights,engine"]
    assert CliRunner().invoke(app, [*words, *allowed], env={"COLUMNS": "160"}).exit_code == 0
