"""Fine-tunings as runs of a sweep: which ones names choose, their folders and commands, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from support.metrics_parts import make_record

from efficientbench.basics.counted import seconds
from efficientbench.basics.errors import ConfigError
from efficientbench.cli.sweep import sweep
from efficientbench.finetuning.load import resolve_tuning
from efficientbench.finetuning.planning.plan import asked
from efficientbench.finetuning.planning.request import plan_request
from efficientbench.metrics.formulas.definitions import FORMULAS
from efficientbench.metrics.records.record import write_record
from efficientbench.sweep.estimate import Estimate
from efficientbench.sweep.machine import Machine, planned_machine
from efficientbench.sweep.selection import Request, chosen_tunings, names_tunings, select
from efficientbench.sweep.task import in_turns
from efficientbench.sweep.tuning_tasks import TuningTask, estimate_tuning, tuning_tasks

CPU = Machine("cpu", "a CPU", ("0",), None, 400_000_000, None)
NPUS = Machine("npu", "Ascend910B", tuple("01234567"), 64 * 10**9, 1_500_000_000, "ASCEND_RT_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("only", "sizes", "count"),
    [
        (("finetuning",), (), 42),
        (("lora", "dora_7B"), (), 7),
        (("lora", "dora"), ("7B", "qwen3_32B"), 4),
        (("full_tiny",), (), 1),
    ],
)
def test_names_choose_fine_tunings(only: tuple[str, ...], sizes: tuple[str, ...], count: int) -> None:
    request = Request(only=only, sizes=sizes)
    assert names_tunings(request)
    assert len(chosen_tunings(request)) == count


def test_other_names_choose_trainings() -> None:
    assert not names_tunings(Request())
    assert not names_tunings(Request(only=("attention",)))
    # A matrix of one's own may call a variant so.
    assert not names_tunings(Request(matrix=Path("mine.yaml"), only=("full",)))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(only=("lora", "gqa")), "lora is a fine-tuning and 'gqa' is not: trainings and fine-tunings are"),
        (Request(only=("lora", "dora_7b")), "'dora_7b' is not: did you mean dora_7B?"),
        (Request(only=("lora",), sizes=("7b",)), "no size of fine-tunings called '7b': did you mean 7B?"),
        (Request(only=("lora_tiny",), sizes=("7B",)), "no chosen run has the size 7B; available sizes: tiny"),
        (Request(only=("lora",), axes=("lora_q=1,2",)), "lora_q: unknown key"),
        (Request(only=("lora",), axes=("output=a,b",)), "cannot be swept"),
        (
            Request(only=("lora",), axes=("curriculum_seed=1,2",), repeat=2),
            "give either --repeat or --set curriculum.seed",
        ),
        (Request(only=("lora",), retry_smaller=True), "--retry-smaller: is of trainings"),
        (Request(only=("lora",), generate=True), "--generate: is of trainings"),
        (Request(only=("lora_32B",), overrides=("batch_size=100",)), "the nearest that is: 96"),
    ],
)
def test_an_invalid_request_is_refused(request_: Request, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        _ = names_tunings(request_) and tuning_tasks(request_, NPUS, None)


def test_a_misspelt_fine_tuning_is_refused_with_the_nearest_name() -> None:
    from efficientbench.config.matrix import load_matrix

    with pytest.raises(ConfigError, match=r"did you mean lora_32B\?"):
        select(load_matrix(), ("lora_33B",))


def test_every_run_has_its_own_folder_and_command(tmp_path: Path) -> None:
    # The recipe's word, and two texts of one value.
    axes = ("curriculum.order=paced,shuffled", "learning_rate=1e-3,0.001")
    request = Request(only=("lora_tiny",), axes=axes, overrides=(f"output={tmp_path}",), repeat=2)
    tasks = tuning_tasks(request, CPU, None)
    assert len(tasks) == len({task.folder.path for task in tasks}) == len({task.configuration for task in tasks}) == 4
    first = tasks[1]
    label = "order=paced__learning_rate=0.001"
    assert (first.id, first.folder.path) == (
        f"lora_tiny__{label}__seed_43",
        tmp_path / f"lora_tiny__{label}" / "seed_43",
    )
    assert first.arguments == (
        *("finetune", "lora_tiny", f"output={tmp_path}", "curriculum.order=paced"),
        *("training.learning_rate=1e-3", f"label={label}"),
        *("--repeat", "1", "training.seed=43", "curriculum.seed=43"),
    )
    assert (first.ranks, first.steps, first.slots) == (2, 40, 1)
    assert sorted(task.id for task in in_turns(tasks, 7)) == sorted(task.id for task in tasks)


def test_devices_are_divided_and_impossible_fine_tunings_are_rows() -> None:
    axes = ("training.global_batch_size=128,100",)
    whole, refused = tuning_tasks(Request(only=("lora_32B",), axes=axes), NPUS, None)
    assert (whole.slots, whole.ranks, whole.refused) == (8, 8, None)
    assert refused.refused is not None
    assert refused.refused.kind == "mistake"
    assert "the nearest that is: 96" in refused.refused.reason
    wrong = Request(only=("pissa_7B",), axes=("training.seed=1,2",), overrides=("adapter.targets=[foo]",))
    with pytest.raises(ConfigError, match="no linear layer of the decoder is named 'foo'"):
        tuning_tasks(wrong, NPUS, None)
    (half,) = tuning_tasks(Request(only=("lora_32B",)), NPUS, 2)
    assert (half.slots, half.ranks) == (4, 4)


def test_a_record_is_complete_only_for_its_configuration_and_device(tmp_path: Path) -> None:
    request = Request(only=("lora_tiny",), overrides=(f"output={tmp_path}",))
    (task,) = tuning_tasks(request, CPU, None)
    assert isinstance(task, TuningTask)
    assert not task.is_trained("a CPU", False)
    # From another place and with another sink, which change nothing.
    config = resolve_tuning("lora_tiny", overrides=["output=elsewhere", "wandb=mine"])
    values = {"config": config.model_dump(mode="json"), "status": "completed", "device_name": "a CPU"}
    task.folder.path.mkdir()
    write_record(make_record(values | {"formula_id": FORMULAS}), task.folder.record)
    assert task.is_trained("a CPU", False)
    assert not task.is_trained("another CPU", False)
    # One of before a key, whose default does what it did.
    before = config.model_dump(mode="json")
    del before["data"]["workers"]
    write_record(make_record(values | {"formula_id": FORMULAS, "config": before}), task.folder.record)
    assert task.is_trained("a CPU", False)
    (other,) = tuning_tasks(Request(only=("lora_tiny",), overrides=(*request.overrides, "lora_r=4")), CPU, None)
    assert other.folder.path == task.folder.path
    assert not other.is_trained("a CPU", False)


def test_a_dry_run_names_the_unknowns_of_a_fine_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("efficientbench.sweep.sweep.find_machine", lambda device: CPU)
    words = [f"output={tmp_path}"]
    with pytest.raises(typer.Exit) as planned:
        sweep(arguments=words, only="lora,full", sizes="tiny", axes=["lora_r=4,8"], dry_run=True)
    assert planned.value.exit_code == 0
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if "_tiny__" in line}
    assert rows["full_tiny__r=8"] == ["queued", "2", "40", "n/a", "2", "n/a", "n/a", "n/a"]
    assert len(rows) == 4
    assert "4 runs to do" in printed
    assert "n/a time: of a fine-tuning: `efficientbench finetune NAME --plan`" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_names_the_missing_examples_of_a_fine_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("efficientbench.sweep.sweep.find_machine", lambda device: CPU)
    with pytest.raises(typer.Exit):
        sweep(arguments=[f"output={tmp_path}"], only="lora", sizes="tiny", data="missing.jsonl", dry_run=True)
    told = (
        "lora_tiny: data.path: missing.jsonl is no file; a JSON, JSONL or parquet file serves, or the hub's owner/name"
    )
    assert told in capsys.readouterr().out


def test_a_plan_for_a_cluster_lists_fine_tunings_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, place = [f"output={tmp_path}", "training.steps=100"], {"device": "h100 sxm", "devices_per_node": 4}
    with pytest.raises(typer.Exit) as planned:
        sweep(arguments=words, only="lora,full", sizes="32B", dry_run=True, nodes=2, **place)  # type: ignore[arg-type]
    assert planned.value.exit_code == 0
    printed = capsys.readouterr().out
    assert "planned for 2 nodes of 4 × H100 SXM" in printed
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if "_32B  " in line}
    plans = {name: asked(plan_request(resolve_tuning(name), 8, 4, "H100 SXM", None)) for name in rows}
    assert {name: plan.fits for name, plan in plans.items()} == {"lora_32B": True, "full_32B": False}
    lora, full = plans["lora_32B"], plans["full_32B"]
    step = lora.time(lora.layout.tokens)
    assert step is not None
    expected = f"queued 8 100 n/a 1 {4 * lora.total_bytes / 1e9:.2f} {seconds(100 * step.longest_s)} n/a"
    assert " ".join(rows["lora_32B"]) == expected
    assert " ".join(rows["full_32B"]) == f"refused 8 100 n/a 1 {4 * full.total_bytes / 1e9:.2f} n/a n/a"
    assert "full_32B: refused (out_of_memory): full_32B does not fit: a rank needs about" in printed
    assert "finetune full_32B --plan --world 8 --devices-per-node 4 --device 'H100 SXM'` lists the layouts" in printed
    assert "time: projected from the rates of H100 SXM, 40% of its peak" in printed
    assert "\n1 run to do\n" in printed
    whole = printed.splitlines()[0]
    assert whole.startswith("whole budget: ")
    assert whole.endswith(" device hours, kWh n/a (of a fine-tuning is not estimated)")
    assert list(tmp_path.iterdir()) == []


def test_a_device_without_rates_and_a_run_without_steps_have_memory_and_no_time() -> None:
    def planned(machine: Machine, *overrides: str) -> tuple[TuningTask, Estimate]:
        (task,) = tuning_tasks(Request(only=("lora_32B",), overrides=overrides), machine, None)
        assert isinstance(task, TuningTask)
        assert task.config is not None
        return task, estimate_tuning(task.config, task.projection)

    task, estimate = planned(NPUS, "training.steps=10")
    found = task.planned()
    assert found is not None
    assert found.node_memory_bytes == 8 * asked(plan_request(resolve_tuning("lora_32B"), 8, 8, None, None)).total_bytes
    assert (estimate.time_s, "910B" in estimate.time_source) == (None, True)
    task, estimate = planned(planned_machine("H100 SXM", 1, 8))
    assert (estimate.time_s, "training.epochs" in estimate.time_source) == (None, True)
    task, estimate = planned(NPUS, "training.dtype=fp32")
    assert (task.projection.plan, "fp32" in estimate.time_source) == (None, True)


def test_a_fine_tuning_too_large_by_plan_is_tried_on_the_machine_at_hand() -> None:
    (task,) = tuning_tasks(Request(only=("full_32B",)), NPUS, None)
    assert isinstance(task, TuningTask)
    assert task.projection.plan is not None
    assert (task.projection.plan.fits, task.refused) == (False, None)
