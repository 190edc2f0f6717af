"""The runs of a study: paired tokens and seeds, matched models, the search of rates, and what is on disk of them."""

from __future__ import annotations

import io
import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.tiny_studies import write_record, write_study

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.costs.model import count_parameters, flops_per_token
from efficientbench.planning.vocabulary import resolve_run
from efficientbench.running.resume import settings
from efficientbench.studies.cells import LadderPlan, check_text
from efficientbench.studies.forecast import print_forecast
from efficientbench.studies.run import found_study, replaced, train
from efficientbench.studies.search import keep_slope, search
from efficientbench.studies.study import Question, planned
from efficientbench.studies.tasks import without_gone
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.queue import Queue, State
from efficientbench.sweep.scheduler import Manner
from efficientbench.training.checkpoints.manifest import checkpoint_folder
from efficientbench.training.update.schedule import learning_rate

CPU = Machine("cpu", "a CPU", ("0",), None, 400_000_000, None)
Planner = Callable[..., LadderPlan]


@pytest.fixture
def plan_of(tmp_path: Path) -> Planner:
    def plan(**words: Any) -> LadderPlan:
        file = write_study(tmp_path / "mine.yaml", **words)
        return planned(Question(file, overrides=(f"output={tmp_path}/suite",)), CPU, 1, dry_run=True)

    return plan


def test_the_variants_of_a_cell_have_the_baselines_tokens_the_same_seeds_and_equal_flops(plan_of: Planner) -> None:
    plan = plan_of(seeds=2)
    runs = plan.runs({("gqa", "8k"): 0.002})
    assert [(run.variant, run.cell.size, run.seed) for run in runs[:4]] == [
        ("gqa", "8k", 1234),
        ("mla", "8k", 1234),
        ("gqa", "8k", 1235),
        ("mla", "8k", 1235),
    ]
    assert len(runs) == 2 * 3 * 2 * 2 == len({run.task.folder.path for run in runs})
    for run in runs:
        config = run.task.config
        assert config is not None
        assert (config.training.tokens, config.training.seed) == (run.cell.tokens, run.seed)
        if run.variant == "gqa":
            flops = flops_per_token(config.model, 32).training
            assert run.cell.parameters == flops / 6
            ratio = float(config.label.removesuffix("x")) if config.label else 0
            assert 0 <= run.cell.tokens - ratio * count_parameters(config.model).total < 512
    for size in ("8k", "16k", "32k"):
        one, other = (flops_per_token(plan.models[name, size].config.model, 32).training for name in ("gqa", "mla"))
        assert other / one == pytest.approx(1, abs=0.03)
    assert (plan.widths["mla", "64k"], plan.models["mla", "64k"].config.model.ffn_hidden_size) == (128, 136)


def test_the_command_of_a_run_trains_what_the_plan_has(plan_of: Planner) -> None:
    plan = plan_of()
    tasks = [run.task for run in plan.runs({("mla", "16k"): 0.00123})] + [plan.search("mla", "8k", 0.003)]
    for task in tasks:
        command, name, flag, file, *words = task.arguments
        assert (command, flag) == ("run", "--matrix")
        words = words[2:] if words[0] == "--repeat" else words
        given = [word for word in words if word not in ("--repeat", "1")]
        config, _ = resolve_run(name, False, given, Path(file))
        assert task.config is not None
        assert settings(config.model_dump(mode="json"), ()) == settings(task.config.model_dump(mode="json"), ())


def test_shorter_runs_are_branches_of_the_longest_where_their_rates_fall(plan_of: Planner) -> None:
    runs = plan_of(tokens_per_parameter=[8, 16, 32], seeds=2).runs({})
    by_id = {run.task.id: run for run in runs}
    branches = [run for run in runs if run.begin]
    assert len(branches) == 2 * len(runs) / 3
    for run in branches:
        (name,) = run.task.after
        trunk, config = by_id[name], run.task.config
        assert (trunk.variant, trunk.cell.size, trunk.seed) == (run.variant, run.cell.size, run.seed)
        assert trunk.cell.tokens == max(each.cell.tokens for each in runs if each.cell.size == run.cell.size)
        assert config is not None
        assert trunk.task.config is not None
        assert (config.init.run, config.init.step) == (str(trunk.task.folder.path), run.begin)
        assert run.share == pytest.approx(0.2, abs=0.01)
        assert run.begin * 512 in (trunk.task.config.checkpoint.at_tokens or ())
        # The engine refuses a branch whose trunk has had another rate before.
        for step in range(1, run.begin + 1):
            own, other = (
                learning_rate(each.training, step, int(cell.tokens) // 512)
                for each, cell in ((config, run.cell), (trunk.task.config, trunk.cell))
            )
            assert own == other
    with pytest.raises(ConfigError, match="gqa_8k: its branch of 6 steps is shorter than the 12 of measurement"):
        plan_of(measured=11, tokens_per_parameter=[2, 4])


def test_cells_that_read_their_text_more_than_four_times_are_refused_by_their_size(plan_of: Planner) -> None:
    plan = plan_of()
    most = max(cell.tokens for cell in plan.cells.values())
    check_text(plan, 4 / most)
    told = r"32k × 16: [\d.]+k tokens are 4.1 epochs of this text: 4 are the most; leave out 16, or add text"
    with pytest.raises(ConfigError, match=told):
        check_text(plan, 4.1 / most)


def test_the_search_closes_in_on_each_variants_rate_and_one_slope_carries_it_up(plan_of: Planner) -> None:
    plan = plan_of()
    best = {"gqa": 0.004, "mla": 0.02}
    sizes = {cell.size: cell.parameters for cell in plan.cells.values()}

    def lost(variant: str, size: str, rate: float) -> float:
        return 3 + 0.05 * math.log(rate / best[variant] * (sizes[size] / sizes["8k"]) ** 0.3) ** 2

    for _ in range(20):
        found = search(plan)
        if not found.open:
            break
        for task in found.open:
            assert task.config is not None
            rate = task.config.training.learning_rate
            write_record(task, lost(task.config.variant, task.config.size, rate))
    assert (found.open, found.without) == ([], {})
    assert {pair: len(losses) for pair, losses in found.losses.items()}["mla", "8k"] > 3, "it went beyond the first end"
    for (variant, size), rate in found.rates.items():
        right = best[variant] * (sizes[size] / sizes["8k"]) ** -0.3
        assert rate == pytest.approx(right, rel=0.05 if size == "32k" else 0.002)
    assert {size for _, size in found.rates} == {"8k", "16k", "32k"}


def _search_to_the_end(plan: LadderPlan, best: dict[str, float]) -> None:
    while tasks := search(plan).open:
        for task in tasks:
            assert task.config is not None
            rate = task.config.training.learning_rate
            write_record(task, 3 + 0.05 * math.log(rate / best[task.config.variant]) ** 2)


def test_a_variant_that_is_added_changes_no_rate_of_the_others(plan_of: Planner) -> None:
    best = {"gqa": 0.004, "mla": 0.004, "none": 0.02}
    plan = plan_of(sizes=["32k", "16k", "8k"])
    assert plan.section.search_sizes == ("8k", "16k"), "the two smallest, whatever their order in the file"
    _search_to_the_end(plan, best)
    before = search(plan)
    keep_slope(plan.suite, before.slope)
    more = plan_of(variants=["gqa", "mla", "none"])
    # Another best rate at the second size would change the slope.
    _search_to_the_end(more, {**best, "none": 0.001})
    after = search(more)
    assert after.without == {}
    assert after.slope == before.slope
    assert before.rates.items() <= after.rates.items()
    keep_slope(plan.suite, -1.0)
    assert search(more).slope == before.slope


def test_a_smaller_budget_says_before_which_complete_runs_it_trains_again(plan_of: Planner) -> None:
    rates = {name: dict.fromkeys(("8k", "16k", "32k"), 0.003) for name in ("gqa", "mla")}
    plan = plan_of(learning_rate=rates, tokens_per_parameter=[8, 16])
    assert replaced(plan) == []
    for run in plan.runs(search(plan).rates):
        write_record(run.task, 3.0)
    assert replaced(plan) == replaced(plan_of(learning_rate=rates, tokens_per_parameter=[8, 16, 32])) == []
    (line,) = replaced(plan_of(learning_rate=rates, tokens_per_parameter=[4, 8, 16]))
    assert line == (
        "warning: 12 complete runs will be trained again, and what is there moves to previous/ (output=FOLDER keeps "
        "it): each record is of another training.lr_warmup_tokens, which is 0.1 of a size's fewest tokens"
    )


def test_fixed_rates_count_epochs_by_the_first_run_that_has_read_the_text(plan_of: Planner) -> None:
    rates = {name: dict.fromkeys(("8k", "16k", "32k"), 0.003) for name in ("gqa", "mla")}
    plan = plan_of(learning_rate=rates)
    most = max(cell.tokens for cell in plan.cells.values())
    run = next(run for run in plan.runs(search(plan).rates) if not run.begin)
    tokens = int(run.cell.tokens)
    write_record(run.task, 3.0, tokens_trained=tokens, epochs=4.1 * tokens / most)
    # It raises before it starts any process.
    with pytest.raises(ConfigError, match=r"32k × 16: [\d.]+k tokens are 4.1 epochs of this text: 4 are the most"):
        train(plan, Manner(CPU, 1))


def test_a_run_is_complete_whatever_device_trained_it(plan_of: Planner) -> None:
    plan = plan_of()
    tasks = [plan.search("gqa", "8k", 0.003), *(run.task for run in plan.runs({}))]
    for task in tasks:
        write_record(task, 3.0, device_name="another CPU")
    assert all(task.is_trained("a CPU", False) for task in tasks)


def test_a_branch_whose_trunk_has_lost_its_state_is_trained_by_itself_in_the_trunks_order(plan_of: Planner) -> None:
    runs = plan_of().runs({})
    branch = next(run for run in runs if run.begin)
    trunk = next(run for run in runs if run.task.id == branch.task.after[0])
    at = runs.index(branch)
    assert without_gone(runs) == runs
    write_record(trunk.task, 3.0)
    alone = without_gone(runs)[at].task
    assert alone.config is not None
    assert (alone.after, alone.config.init.run, alone.config.data.order_tokens) == ((), None, trunk.cell.tokens)
    assert not [word for word in alone.arguments if word.startswith("init.")]
    assert f"data.order_tokens={int(trunk.cell.tokens)}" in alone.arguments
    write_record(alone, 3.1)
    assert branch.task.is_trained("a CPU", False)
    branch.task.folder.record.unlink()
    checkpoint_folder(trunk.task.folder.path, branch.begin).mkdir(parents=True)
    assert without_gone(runs) == runs


def test_a_search_counts_a_divergence_as_the_worst_loss_and_says_why_a_variant_has_no_rate(plan_of: Planner) -> None:
    plan = plan_of()
    for rate, loss in ((0.0015, 3.1), (0.003, 3.0)):
        write_record(plan.search("gqa", "8k", rate), loss)
    failed = {"gqa": ("non_finite", 0.006), "mla": ("out_of_memory", 0.003)}
    for variant, (kind, rate) in failed.items():
        task = plan.search(variant, "8k", rate)
        task.folder.path.mkdir(parents=True)
        task.folder.failure.write_text(json.dumps({"kind": kind, "reason": "as it was"}), encoding="utf-8")
    found = search(plan)
    assert found.losses["gqa", "8k"] == {0.0015: 3.1, 0.003: 3.0, 0.006: math.inf}
    assert [task.id for task in found.open if task.id.startswith("gqa")][0].startswith("gqa_16k__rate=")
    assert found.without["mla"] == "mla_8k__rate=0.003: as it was"
    unfinished = f"its learning rate is still searched: {found.open[0].id} is not trained yet"
    assert found.without["gqa"] == unfinished
    assert [task.id for task in found.failed] == ["mla_8k__rate=0.003"]


def test_a_text_that_is_not_there_is_refused_before_a_search_and_told_by_a_dry_run(tmp_path: Path) -> None:
    file, gone = write_study(tmp_path / "mine.yaml"), tmp_path / "gone"
    question = Question(file, overrides=(f"output={tmp_path}/suite", f"data.path={gone}"))
    plan = planned(question, CPU, 1, dry_run=True)
    with pytest.raises(ConfigError, match=f"^data.path: {gone}: no such file$"):
        train(plan, Manner(CPU, 1))
    assert not plan.suite.exists()
    assert _forecast(plan).endswith(f"data.path: {gone}: no such file\n")


def test_a_search_tries_again_what_another_configuration_failed_by(plan_of: Planner) -> None:
    plan = plan_of()
    task, queue = plan.search("gqa", "8k", 0.003), Queue(plan.suite)
    queue.make()
    task.folder.path.mkdir(parents=True)
    task.folder.failure.write_text(json.dumps({"kind": "mistake", "reason": "no such file"}), encoding="utf-8")
    state = State(task.id, "failed", "another", ["efficientbench", *task.arguments], str(task.folder.path))
    queue.write(state)
    assert task.id in [each.id for each in search(plan).open]
    for rate in (0.0015, 0.006):
        write_record(plan.search("gqa", "8k", rate), 3.0)
    queue.write(replace(state, configuration=task.configuration))
    assert [each.id for each in search(plan).failed] == [task.id]
    for other in search(plan).open:
        other.folder.path.mkdir(parents=True)
        other.folder.failure.write_text(json.dumps({"kind": "mistake", "reason": "no such file"}), encoding="utf-8")
        queue.write(replace(state, id=other.id, configuration=other.configuration))
    with pytest.raises(ConfigError, match=r"gqa_8k__rate=0\.003: no such file; --retry-failed tries it again$"):
        train(plan, Manner(CPU, 1))


def test_costs_are_compared_on_devices_that_trained_every_variant(plan_of: Planner) -> None:
    rates = {name: dict.fromkeys(("8k", "16k", "32k"), 0.003) for name in ("gqa", "mla")}
    plan = plan_of(learning_rate=rates)
    speeds = {"slow": 1000.0, "fast": 9000.0}

    def write(variant: str, size: str, device: str) -> None:
        for run in plan.runs(search(plan).rates):
            if (run.variant, run.cell.size) == (variant, size):
                figures = {"tokens_per_s": speeds[device], "flops_per_token": 50_000.0, "devices": 1}
                write_record(run.task, 3.0, device_name=device, **figures)

    def seconds() -> list[float | None]:
        return [cost.device_seconds for cost in found_study(plan, "mine").costs.values()]

    write("gqa", "8k", "slow")
    write("mla", "8k", "slow")
    one, other = seconds()
    write("gqa", "32k", "fast")
    assert seconds() == [one, other], "the faster device has no record of mla"
    write("mla", "32k", "fast")
    write("mla", "16k", "fast")
    assert seconds() == [pytest.approx((each or 0) / 9) for each in (one, other)]


def test_a_study_is_what_its_records_say(plan_of: Planner) -> None:
    rates = {name: dict.fromkeys(("8k", "16k", "32k"), 0.003) for name in ("gqa", "mla")}
    plan = plan_of(learning_rate=rates)
    runs = plan.runs(search(plan).rates)
    flat = {"tokens_per_s": 1000.0, "flops_per_token": 50_000.0, "devices": 1, "energy_j_per_token": 0.5}
    write_record(runs[0].task, 3.5)
    write_record(runs[1].task, 3.4, epochs=7.0)
    write_record(runs[-1].task, 3.0, **flat)
    assert runs[2].task.config is not None
    other = runs[2].task.config.model_copy(update={"model": resolve("mqa_1.5B").model})
    write_record(runs[2].task, 3.2, config=other.model_dump(mode="json"))
    runs[3].task.folder.path.mkdir(parents=True)
    runs[3].task.folder.failure.write_text(json.dumps({"kind": "out_of_memory", "reason": "too large"}))
    study = found_study(plan, "mine")
    assert [run.state for run in study.runs[:5]] == ["complete", "speed only", "missing", "failed", "missing"]
    assert [run.loss for run in study.runs[:5]] == [3.5, None, None, None, None]
    assert study.runs[1].reason == "7 epochs are more than 4"
    assert (study.runs[2].reason or "").startswith("its record is of another model.")
    assert study.runs[3].reason == "out of memory: too large"
    assert study.ladder.losses.shape == (2, 6, 1)
    cost = study.costs["mla"]
    assert cost.device_seconds == pytest.approx((cost.training_flops or 0) / 50e6)
    assert cost.joules == pytest.approx((cost.training_flops or 0) / 1e5)
    assert cost.time_measured
    assert not study.costs["nsa" if "nsa" in study.costs else "gqa"].joules


def _forecast(plan: LadderPlan) -> str:
    console = Console(file=io.StringIO(), width=300)
    print_forecast(plan, found_study(plan, "mine"), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_forecast_gives_a_run_its_part_of_the_cores_and_its_own_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("efficientbench.studies.forecast.usable_cores", lambda: 4.0)
    # So slow that the steps take hours.
    monkeypatch.setattr("efficientbench.sweep.estimate.ASSUMED_CORE_FLOPS", 1e6)
    rates = {name: dict.fromkeys(("8k", "16k", "32k"), 0.003) for name in ("gqa", "mla")}
    file = write_study(tmp_path / "mine.yaml", learning_rate=rates)
    hours = {}
    for jobs, start_s in ((1, 0.0), (4, 0.0), (4, 3600.0)):
        monkeypatch.setattr("efficientbench.sweep.estimate.ASSUMED_START_S", start_s)
        plan = planned(Question(file, overrides=(f"output={tmp_path}/suite",)), CPU, jobs, dry_run=True)
        found = re.match(r"whole budget of 12 runs: .*, ([\d,.]+) device hours", _forecast(plan))
        assert found is not None
        hours[jobs, start_s] = float(found[1].replace(",", ""))
    assert hours[4, 0.0] == pytest.approx(4 * hours[1, 0.0], rel=0.01)
    # Half of the runs are branches, which train their last fifth alone.
    assert hours[4, 3600.0] == pytest.approx(hours[4, 0.0] + 12, rel=0.01)


def test_a_forecast_says_once_how_the_vocabulary_of_the_text_makes_the_models_larger(tmp_path: Path) -> None:
    keys = (f"output={tmp_path}/suite", "data.trained_vocab_size=1000")
    question = Question(write_study(tmp_path / "mine.yaml"), overrides=keys)
    lines = [line for line in _forecast(planned(question, CPU, 1, dry_run=True)).splitlines() if "vocab_size" in line]
    assert len(lines) == 1
    assert re.fullmatch(
        r"gqa_8k: model\.vocab_size=1000 instead of 264, as data\.trained_vocab_size has; the model has [\d,]+ "
        r"parameters instead of [\d,]+, [\d.]+ times",
        lines[0],
    )
    assert "vocab_size" not in _forecast(planned(replace(question, overrides=keys[:1]), CPU, 1, dry_run=True))


def test_a_forecast_takes_the_noise_of_the_seeds_that_are_trained(plan_of: Planner) -> None:
    rates = {name: dict.fromkeys(("8k", "16k", "32k"), 0.003) for name in ("gqa", "mla")}
    plan = plan_of(learning_rate=rates, seeds=2)
    before = _forecast(plan)
    assert "0 of 24 runs of the cells are trained\n" in before, "given rates are not searched"
    assert "if equal runs lie 0.0014 nats apart (standard deviation), as published ones of 124M parameters do" in before
    chance = random.Random(0)
    for run in plan.runs(search(plan).rates):
        write_record(run.task, 3.0 + chance.gauss(0, 0.05))
    after = _forecast(plan)
    (apart,) = re.findall(
        r"if equal runs lie ([\d.]+) nats apart \(standard deviation\), as those of these seeds do", after
    )
    assert 0.03 < float(apart) < 0.08
    gaps = [float(each) for text in (before, after) for each in re.findall(r"a gap of ([\d.]+) nats is named", text)]
    assert gaps[1] > 5 * gaps[0]
    # The published law is of larger models, so that no compute is told for the gap.
    assert "Chinchilla" not in before + after
