"""Cost of a life: sums by hand, where two models meet against simulated measurements, and what is refused."""

from __future__ import annotations

import hashlib
import math
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.generated import failed_row, generation, phase, row
from support.metrics_parts import make_record
from typer.testing import CliRunner

from efficientbench.basics.errors import MetricsError
from efficientbench.cli.app import app
from efficientbench.metrics.analysis import stages
from efficientbench.metrics.analysis.compare import compare
from efficientbench.metrics.analysis.conditions import differences
from efficientbench.metrics.analysis.generation import OF_GENERATION, load_generated
from efficientbench.metrics.analysis.life_cost import Lives, Losses, Model, compare_lives, losses_of
from efficientbench.metrics.analysis.overtaking import Amount, Life, Overtaking, overtaking
from efficientbench.metrics.analysis.repeats import Group, group_repeats
from efficientbench.metrics.formulas.ratio import Estimate
from efficientbench.metrics.formulas.student import t_quantile_95
from efficientbench.metrics.records.generation.generation import GenerationRecord, write_generation
from efficientbench.metrics.records.record import RunRecord, write_record
from efficientbench.metrics.records.record_parts import PhaseCost, QualityPoint, Reinforcement
from efficientbench.metrics.report.sections.lives import print_lives

GPU = "NVIDIA H100 80GB HBM3"


def trained(variant: str = "gqa", seed: int = 1234, **figures: object) -> RunRecord:
    """A run of 2 hours that trained on 3.6 million tokens in one of them, on one device for 2 J a token."""
    names = {"run": f"{variant}_1.5B", "variant": variant, "size": "1.5B", "seed": seed, "device_name": GPU}
    measured = {"tokens_per_s": 1000.0, "tokens_trained": 3_600_000, "energy_j_per_token": 2.0, "energy_scope": "gpu"}
    times = {"al_s": 0.1, "steps_measured": 18_000, "tokens": 1_800_000, "duration_s": 7200.0}
    return make_record({**names, **measured, **times, **figures})


def side(variant: str, *rows: object, **figures: object) -> tuple[Group, list[GenerationRecord]]:
    return Group((trained(variant, **figures),)), [generation(variant, rows=rows)]  # type: ignore[arg-type]


def both(
    *sides: tuple[Group, list[GenerationRecord]], despite: tuple[str, ...] = (), earlier: tuple[RunRecord, ...] = ()
) -> tuple[Lives, Losses]:
    """The lives and losses of two models; the second one's weights come from `earlier` runs."""
    (first, made), (second, others) = sides
    comparison = compare(first, second, [name for name in despite if name not in OF_GENERATION])
    losses = losses_of(comparison)
    [found] = compare_lives(comparison, (Model(first, made), Model(second, others, earlier)), losses.target, despite)
    return found, losses


def lives(*sides: tuple[Group, list[GenerationRecord]], despite: tuple[str, ...] = ()) -> Lives:
    return both(*sides, despite=despite)[0]


ROWS = {
    "prefill": phase(2.0, 8 * 128, joules=0.5),
    "decode": phase(0.05, 8, joules=3.0),
}


def test_costs_match_sums_by_hand() -> None:
    found = lives(side("gqa", row("gqa", 128, 8, **ROWS)), side("mqa", row("mqa", 128, 8, **ROWS)))
    assert found.combination == (128, 8, 64)
    life, _ = found.costs["device hours"]
    assert life.training.value == 2.0
    assert [hours.value for hours in found.training_hours or ()] == [1.0, 1.0]
    # A request of 8 rows with 64 new tokens each: one prefill and 63 steps.
    assert life.token.value == pytest.approx((2.0 + 63 * 0.05) / 3600 / (8 * 64))
    joules, _ = found.costs["J"]
    assert joules.training.value == 7.2e6
    assert joules.token.value == pytest.approx((0.5 * 128 + 3.0 * 63) / 64)
    assert joules.after(1e6).value == pytest.approx(7.2e6 + 1e6 * (0.5 * 128 + 3.0 * 63) / 64)


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


def told(found: Overtaking) -> bool:
    """Whether any difference is beyond the noise."""
    return found.low > 0 or not math.isinf(found.high)


def test_a_model_overtakes_where_the_costs_meet() -> None:
    found = overtaking(life(100, 3), life(200, 1))
    assert (found.tokens, found.before) == (50, 0)
    assert (found.low, found.high) == pytest.approx((50, 50))
    assert (told(found), found.always) == (True, False)
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
    assert (found.tokens, found.before, found.after) == (None, cheaper, cheaper)
    assert found.always == (cheaper is not None)


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
        held += found.low <= 50 <= found.high
    assert 0.93 < held / 1000 < 0.97


def test_the_meeting_point_has_no_upper_end_where_serving_costs_may_be_equal() -> None:
    found = overtaking(life(100, 1.02, noise=0.05), life(200, 1.0, noise=0.05))
    assert found.low > 0
    assert found.high == math.inf
    unknown = overtaking(Life(Amount(100), Amount(3)), Life(Amount(200), Amount(1)))
    assert (unknown.tokens, unknown.low, unknown.high, told(unknown)) == (50, 0.0, math.inf, False)


def test_costs_that_cannot_be_added_have_a_reason() -> None:
    measured = side("gqa", row("gqa", 128, 8))
    found = lives(measured, side("mqa", row("mqa", 128, 8, joules=None)))
    assert "device hours" in found.costs
    assert found.missing["J"] == "prefill_energy_j_per_token: no sensor of energy"
    found = lives(measured, side("mqa", row("mqa", 128, 8), energy_scope="node"), despite=("energy_scope",))
    assert found.missing["J"] == "mqa_1.5B: training has the energy of node, generation that of gpu"
    found = lives(measured, side("mqa", row("mqa", 128, 8), device_name="A100-SXM4-80GB"), despite=("device",))
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
        print_lives([found], Losses(None, None, "no validation"), "an engine", 1e9, 2.5, console)
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


def text_of(found: tuple[Lives, Losses], served_tokens: float = 1e9) -> str:
    console = Console(width=400)
    with console.capture() as captured:
        print_lives([found[0]], found[1], "efficientbench: one static batch", served_tokens, 2.5, console)
    return " ".join(captured.get().split())


BY_SEED = ("wall_s", "validation_loss")


def repeats(
    variant: str, decode_s: float = 0.05, seeds: int = 3, **figures: Any
) -> tuple[Group, list[GenerationRecord]]:
    """Repeats in turns with a spread of 1 %; figures of BY_SEED have one for each seed."""
    spread = [1 + 0.01 * (seed - 1) for seed in range(seeds)]
    begins = {"gqa": 0, "mqa": 1}[variant]
    runs = [
        trained(
            variant,
            seed=seed,
            started_at=f"2026-01-02T{3 * (2 * seed + begins):02}:00:00+00:00",
            duration_s=7200.0 * spread[seed],
            energy_j_per_token=2.0 * spread[seed],
            **{name: each[seed] if name in BY_SEED else each for name, each in figures.items()},
        )
        for seed in range(seeds)
    ]
    made = [
        generation(
            variant,
            seed=seed,
            rows=[
                row(
                    variant,
                    128,
                    8,
                    prefill=ROWS["prefill"],
                    decode=phase(decode_s * each, 8, joules=60 * decode_s * each),
                )
            ],
        )
        for seed, each in enumerate(spread)
    ]
    return Group(tuple(runs)), made


def test_the_text_names_engine_meeting_point_and_intervals() -> None:
    found = both(repeats("gqa"), repeats("mqa", 0.025, wall_s=[14_256.0, 14_400.0, 14_544.0]))
    text = text_of(found)
    assert "A life: the training and 1e+09 served tokens" in text
    assert "training, currency 5 4.876 to 5.124 10 9.752 to 10.25" in text
    assert "of that, steps, device hours 1 n/a 1 n/a" in text
    hours = 2 * 3600 * 8 * 64 / (63 * 0.025)
    assert f"device hours: B overtakes A from {hours / 1e6:.2f}M served tokens on (95 %: " in text
    assert "J: B costs less from " in text
    assert "; their losses are not compared (gqa_1.5B: not part of this test)." in text
    assert "Engine: efficientbench: one static batch" in text
    assert "no figures of vLLM's" in text


def test_single_runs_and_differences_within_the_noise_are_not_told() -> None:
    slower = {"wall_s": 7300.0}
    alone = text_of(both(side("gqa", row("gqa", 128, 8, **ROWS)), side("mqa", row("mqa", 128, 8, **ROWS), **slower)))
    assert "device hours: cannot be told, since it takes 3 repeats of both trainings and of both measurements" in alone
    assert "by the figures alone, A costs less;" in alone
    text = text_of(both(repeats("gqa"), repeats("mqa", 0.0501)))
    assert "device hours: cannot be told, since the differences are within the noise" in text
    assert "at any number" not in alone + text


def test_one_costs_less_at_any_number_where_both_intervals_say_so() -> None:
    costly = {"wall_s": [14_256.0, 14_400.0, 14_544.0]}
    text = text_of(both(repeats("gqa"), repeats("mqa", 0.1, **costly)))
    assert "device hours: A costs less at any number of served tokens;" in text
    first, made = repeats("gqa")
    later = [
        record.model_copy(update={"started_at": record.started_at.replace("2026", "2025")}) for record in first.records
    ]
    apart = text_of(both((Group(tuple(later)), made), repeats("mqa", 0.1, **costly)))
    assert "device hours: cannot be told, since they did not run in turns" in apart


def test_identical_lives_get_a_claim_in_5_percent() -> None:
    """Three repeats of each side with one law; a claim is any that one costs less at some number of served tokens."""
    chance, claims = random.Random(5), 0
    for _ in range(1000):
        sides = [Life(*(Amount.mean([chance.gauss(100, 1) for _ in range(3)]) for _ in range(2))) for _ in range(2)]
        claims += told(overtaking(*sides))
    assert claims / 1000 < 0.06


def test_a_life_has_all_attempts_all_stages_and_all_rollouts(tmp_path: Path) -> None:
    """4.5 times the cost is in the life: of 40 steps 20 were measured, each with rollouts of 3.5 times its cost."""
    costs = PhaseCost(630.0, 5_000, 1.26e6), PhaseCost(180.0, 8_000, 3.6e5)
    learned = Reinforcement(160, 12, 0, 0.1, 0.3, *costs, files_sha256=[])
    of_rl = {"config": {"rl": {"samples": 4}, "model": {}}, "reinforcement": learned, "tokens_trained": None}
    measured = {"steps_measured": 20, "tokens": 180_000, "al_s": 9.0, "wall_s": 36_000.0, "resumed_after_steps": [3]}
    base = trained("mqa", run="base", wall_s=7200.0)
    group = Group((trained("mqa", **of_rl, **measured),))
    assert stages.training_device_hours(group.first) == pytest.approx(4.5 * 40 * 9 / 3600)
    assert stages.training_energy_j(group.first) == pytest.approx(4.5 * 2 * 3.6e5)
    made = [generation("mqa", rows=[row("mqa", 128, 8, **ROWS)], config=of_rl["config"])]
    first = (
        Group((trained("gqa", **of_rl, **measured),)),
        [generation("gqa", rows=[row("gqa", 128, 8, **ROWS)], config=of_rl["config"])],
    )
    found, _ = both(first, (group, made), earlier=(base,))
    assert [life.training.value for life in found.costs["device hours"]] == pytest.approx([10.0, 12.0])
    assert [life.training.value for life in found.costs["J"]] == pytest.approx([3.24e6, 3.24e6 + 7.2e6])


def test_earlier_stages_are_found_where_they_were_and_where_all_moved(tmp_path: Path) -> None:
    base, sft = tmp_path / "there" / "base" / "seed_1", tmp_path / "there" / "sft"
    manifest = base / "checkpoint" / "step_00000006" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("weights")
    write_record(trained(run="base"), base / "record.json")
    init = {"run": str(base), "step": 6, "sha256": hashlib.sha256(b"weights").hexdigest()}
    record = trained(config={"init": init})
    assert [each.run for each in stages.earlier_stages(record, sft)] == ["base"]
    (tmp_path / "there").rename(tmp_path / "moved")
    assert [each.run for each in stages.earlier_stages(record, tmp_path / "moved" / "sft" / "seed_2")] == ["base"]
    (tmp_path / "moved" / manifest.relative_to(tmp_path / "there")).write_text("other weights")
    with pytest.raises(MetricsError, match="began with the weights of .*base/seed_1, whose record is not there"):
        stages.earlier_stages(record, tmp_path / "moved" / "sft")


def curve(*losses: float) -> list[QualityPoint]:
    """Validations after each 1.2 million tokens, all measured at 1,000 tokens/s and 2 J."""
    return [
        QualityPoint(place * 100, place * 1_200_000, loss, 0.001, place * 1_200_000, place * 1200.0, place * 2.4e6, 50)
        for place, loss in enumerate(losses, 1)
    ]


def test_costs_at_equal_loss_leave_out_what_was_trained_beyond_it() -> None:
    learned = {"validation_loss": [2.0, 2.002, 1.998], "tokens_per_parameter": 20.0, "tokens": 3_600_000}
    first = repeats("gqa", quality_curve=curve(3.0, 2.5, 2.0), **learned)
    second = repeats("mqa", quality_curve=curve(2.5, 2.0, 1.8), **{**learned, "validation_loss": [1.8, 1.81, 1.79]})
    found, losses = both(first, second)
    assert losses.values is not None
    assert [loss.value for loss in losses.values] == pytest.approx([2.0, 1.8])
    assert losses.target == pytest.approx(2.0, abs=0.01)
    one, other = (life.training.value for life in found.at_loss["device hours"])
    assert (one, other) == pytest.approx((2.0, 2.0 - 1 / 3), abs=0.02)
    one, other = (life.training.value for life in found.at_loss["J"])
    assert (one, other) == pytest.approx((7.2e6, 4.8e6), rel=0.02)
    text = text_of((found, losses))
    assert "validation losses: A 2.0000 ± 0.0050, B 1.8000" in text
    assert "J at equal loss, 2.00" in text


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


def test_a_branch_costs_its_own_steps_and_the_part_of_its_trunk_before_them(tmp_path: Path) -> None:
    """The trunk's 2 hours and 7.2 MJ are of 3.6 million tokens, of which the branch has taken a quarter."""
    trunk = tmp_path / "trunk"
    sizes = {"global_batch_size": 9, "seq_len": 1000}
    write_record(trained(run="trunk", wall_s=7600.0, **sizes), trunk / "record.json")
    init = {"run": str(trunk), "step": 100, "sha256": "0" * 64, "state": "everything"}
    own = {"tokens_trained": 1_125_000, "tokens": 112_500, "tokens_per_s": 1000.0, "wall_s": 300.0}
    branch = trained(config={"init": init}, **own, **sizes)
    assert branch.branched_after == 100
    assert stages.training_device_hours(branch) == pytest.approx(225 / 3600)
    assert stages.training_energy_j(branch) == pytest.approx(2 * 225_000)
    assert stages.device_hours(branch) == pytest.approx(300 / 3600)
    (part,) = stages.earlier_stages(branch, tmp_path / "branch")
    assert (part.run, part.tokens_trained) == ("trunk", 900_000)
    assert stages.device_hours(part) == pytest.approx(7600 / 4 / 3600)
    assert stages.training_device_hours(part) == pytest.approx(1 / 4)
    assert stages.training_energy_j(part) == pytest.approx(7.2e6 / 4)
    # Weights alone are of the whole run.
    (whole,) = stages.earlier_stages(trained(config={"init": {**init, "state": None}}), tmp_path / "later")
    assert whole.tokens_trained == 3_600_000
    assert len(group_repeats([branch, branch.model_copy(update=other_seed(init))])) == 1
    (difference,) = [each for each in differences(branch, trained(**own, **sizes)) if each.condition == "init"]
    assert difference.one == "all state of a trunk after step 100"


def other_seed(init: dict[str, Any]) -> dict[str, Any]:
    """Another seed's branch, of a trunk of its own."""
    later = {**init, "run": "/another/trunk", "sha256": "1" * 64}
    return {"config": {"init": later}, "seed": 2, "started_at": "2026-11-02T00:00:00.000+00:00"}
