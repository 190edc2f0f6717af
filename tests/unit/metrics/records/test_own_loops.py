"""Loops of one's own end in records that the report, `compare` and CSV take like those of this project's runs."""

from __future__ import annotations

import csv
import math
import os
import re
import runpy
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.repository import ROOT
from typer.testing import CliRunner

from efficientbench.cli.app import app
from efficientbench.metrics import EfficiencyCallback, EfficiencyMonitor, HostSensor, MetricsError, merge
from efficientbench.metrics.analysis.quality import cost_to_loss
from efficientbench.metrics.records.facts import Validation
from efficientbench.metrics.records.loop_monitor import together
from efficientbench.metrics.records.own_loop import NOT_COUNTED, OwnLoop, write_own_record
from efficientbench.metrics.records.record import RunRecord, read_record, write_record
from efficientbench.metrics.report.build import build_report

EXAMPLES = ROOT / "examples"
SHAPE = {"seq_len": 16, "micro_batch_size": 2}


class Counting(torch.nn.Linear):
    """A model that counts its FLOPs, as nanochat's does."""

    def estimate_flops(self) -> int:
        return 6 * self.in_features * self.out_features


def measured(warmup_steps: int = 0) -> EfficiencyMonitor:
    monitor = EfficiencyMonitor([HostSensor()], warmup_steps=warmup_steps)
    with monitor:
        for _ in range(3):
            with monitor.step(tokens=4 * 16):
                sum(range(10_000))
    return monitor


def saved(folder: Path, **options: object) -> RunRecord:
    path = measured().save(folder, **{**SHAPE, "dtype": "fp32", **options})  # type: ignore[arg-type]
    assert path == folder / "record.json"
    return read_record(path)


def test_mfu_follows_from_flops_and_peak(tmp_path: Path) -> None:
    record = saved(tmp_path / "ours", flops_per_token=6e3, peak_flops=1e12)
    assert record.tokens_per_s is not None
    assert record.mfu == pytest.approx(6e3 * record.tokens_per_s / 1e12)
    assert (record.tokens, record.steps_measured, record.global_batch_size, record.devices) == (192, 3, 4, 1)
    assert record.config["own_loop"]["flops_source"] == "flops_per_token"


def test_a_model_with_estimate_flops_counts_its_own_flops(tmp_path: Path) -> None:
    record = saved(tmp_path / "ours", model=Counting(8, 4), peak_flops=1e9, dtype=None)
    assert (record.flops_per_token, record.parameters, record.dtype) == (192, 36, "fp32")
    assert record.config["own_loop"]["flops_source"] == "model.estimate_flops()"


def test_unknown_figures_are_absent_with_a_reason(tmp_path: Path) -> None:
    record = saved(tmp_path / "ours")
    assert (record.mfu, record.parameters, record.flops_per_token) == (None, None, None)
    assert record.unavailable["parameters"] == record.unavailable["tt_tokens_per_param_s"] == NOT_COUNTED
    with pytest.raises(MetricsError, match="no step was measured"):
        measured(warmup_steps=3).save(tmp_path / "other", dtype="fp32", **SHAPE)
    (tmp_path / "file").write_text("")
    with pytest.raises(MetricsError, match="file: cannot be made"):
        measured().save(tmp_path / "file", dtype="fp32", **SHAPE)


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("float32", "fp32"),
        (torch.bfloat16, "bf16"),
        ("torch.float16", "fp16"),
        ("fp32", "fp32"),
        (None, "the loop gave neither dtype nor a model that has one"),
        ("int4", "the loop's dtype, int4, is none of bf16, fp16 and fp32"),
    ],
)
def test_what_was_measured_is_written_whatever_the_dtype(given: object, recorded: str, tmp_path: Path) -> None:
    record = saved(tmp_path / "ours", dtype=given, micro_batch_size=np.int64(2), flops_per_token=6e3)
    assert record.tokens == 192
    if record.dtype is None:
        assert record.unavailable["dtype"] == record.unavailable["mfu"] == recorded
        build_report(tmp_path, paper=True)
        compared = CliRunner().invoke(app, ["compare", str(tmp_path), str(tmp_path)])
        assert compared.exit_code == 0, compared.output
    else:
        assert record.dtype == recorded


def test_a_model_that_cannot_be_asked_costs_its_own_figures_alone(tmp_path: Path) -> None:
    class Broken(Counting):
        def estimate_flops(self) -> int:
            raise RuntimeError("no shapes yet")

    record = saved(tmp_path / "ours", model=Broken(8, 4))
    assert (record.parameters, record.flops_per_token) == (36, None)
    assert record.config["own_loop"]["flops_source"] == "model.estimate_flops() failed: RuntimeError: no shapes yet"
    assert saved(tmp_path / "other", model=object()).parameters is None


def test_an_mfu_above_1_is_absent_with_its_reason(tmp_path: Path) -> None:
    record = saved(tmp_path / "ours", flops_per_token=6e12, peak_flops=1e12)
    assert record.mfu is None
    assert "the FLOPs of a token, or the peak, cannot be right" in record.unavailable["mfu"]
    assert [each.run for each in build_report(tmp_path).records] == ["ours"]


def validated(folder: Path, losses: tuple[float, ...], **options: object) -> RunRecord:
    """Return the record of a loop that validates after each two steps, the last of them by `save`."""
    monitor = EfficiencyMonitor([HostSensor()], warmup_steps=1)
    with monitor:
        for loss in losses:
            for _ in range(2):
                with monitor.step(tokens=4 * 16):
                    sum(range(10_000))
            if loss != losses[-1]:
                monitor.validated(loss)
    path = monitor.save(folder, dtype="fp32", validation_loss=losses[-1], **{**SHAPE, **options})  # type: ignore[arg-type]
    assert path is not None
    return read_record(path)


def test_a_loops_validations_have_costs_to_a_loss(tmp_path: Path) -> None:
    record = validated(tmp_path / "mine", (5.0, 4.0, 3.5))
    assert [(point.step, point.tokens, point.measured_tokens) for point in record.quality_curve] == [
        (2, 128, 64),
        (4, 256, 192),
        (6, 384, 320),
    ]
    assert (record.validation_loss, len(record.windows)) == (3.5, 3)
    assert record.unavailable["validation_loss_se"] == "the loop gave no losses of single documents"
    # Halfway between two losses lies the geometric mean of their tokens; the warm-up's cost the mean rate.
    cost = cost_to_loss(record, 4.5)
    assert cost.tokens == pytest.approx((128 * 256) ** 0.5)
    assert record.al_s is not None
    first, second = (point.train_s + record.al_s for point in record.quality_curve[:2])
    assert cost.time_s == pytest.approx(first + (second - first) * (cost.tokens - 128) / 128)
    validated(tmp_path / "other", (5.0, 4.2, 3.7))
    sides = [str(tmp_path / name) for name in ("mine", "other")]
    compared = CliRunner().invoke(app, ["compare", *sides, "--target-loss", "4.5"])
    assert compared.exit_code == 0, compared.output
    assert "4.5" in compared.stdout
    assert "tokens to it" in compared.stdout


def test_a_loop_that_trains_after_its_last_validation_has_no_validation_loss(tmp_path: Path) -> None:
    monitor = EfficiencyMonitor([HostSensor()])
    with monitor:
        with pytest.raises(MetricsError, match="between two steps or after the last one"):
            monitor.validated(4.0)
        for _ in range(3):
            with monitor.step(tokens=64):
                pass
            if len(monitor._steps) == 1:
                monitor.validated(4.0)
    record = read_record(monitor.save(tmp_path / "mine", dtype="fp32", **SHAPE))  # type: ignore[arg-type]
    assert record.validation_loss is None
    assert record.unavailable["validation_loss"] == "the loop trained 2 steps after its last validation"
    assert [point.loss for point in record.quality_curve] == [4.0]


def test_a_loops_configuration_variant_and_size_are_recorded(tmp_path: Path) -> None:
    for seed in (1, 2):
        given = Namespace(seed=seed, lr=1e-3, data=Path("text.txt"), limit=math.inf)
        record = saved(tmp_path / str(seed) / "mine", config=given, variant="gqa", size="50M", validation_loss=3.0)
        assert (record.run, record.variant, record.size, record.seed) == ("mine", "gqa", "50M", seed)
        own = {key: value for key, value in record.config.items() if key != "own_loop"}
        assert own == {"lr": 1e-3, "data": "text.txt", "limit": "Infinity"}
    assert [each.repeats for each in build_report(tmp_path).records] == [2]
    saved(tmp_path / "other" / "mine", config={"lr": 2e-3}, variant="gqa", size="50M")
    compared = CliRunner().invoke(app, ["compare", str(tmp_path / "1"), str(tmp_path / "other")])
    assert compared.exit_code == 0, compared.output
    assert "lr" in compared.stdout


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seq_len": 0}, "seq_len: Input should be greater than or equal to 1"),
        ({"variant": "x" * 256}, "variant: a name has at most 255 bytes"),
        ({"validation_loss": "low"}, "validation_loss: a number is needed, it is: 'low'"),
    ],
)
def test_a_value_that_no_record_holds_is_named(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(MetricsError, match=re.escape(message)):
        saved(tmp_path / "mine", **given)


def test_validations_of_ranks_have_the_tokens_of_all() -> None:
    ranks = [[Validation(2, 100, 60, 4.0, None, 1)], [Validation(2, 50, 20, 9.0, None, 1)]]
    assert together(ranks) == [Validation(2, 150, 80, 4.0, None, 1)]
    with pytest.raises(MetricsError, match=r"after the steps \[2\], and rank 1 after \[\]: every rank"):
        together([ranks[0], []])


def test_a_loop_sends_steps_validations_and_figures_to_sinks(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monitor = EfficiencyMonitor([HostSensor()], warmup_steps=1)
    monitor.send_to(f"tensorboard:{tmp_path / 'tb'}", f"prometheus:{tmp_path}", name="mine")
    with monitor:
        for loss in (4.0, 3.0):
            with monitor.step(tokens=64):
                sum(range(10_000))
            monitor.validated(loss)
    record = read_record(monitor.save(tmp_path / "mine", dtype="fp32", **SHAPE))  # type: ignore[arg-type]
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("validation/loss")] == [(1, 4.0), (2, 3.0)]
    assert [event.step for event in events.Scalars("efficiency/tokens_per_s")] == [1, 2]
    assert [(event.step, event.value) for event in events.Scalars("by_tokens/validation_loss")] == [(64, 4), (128, 3)]
    shown = (tmp_path / "efficientbench_mine.prom").read_text()
    assert 'efficientbench_running{run="mine"} 0.0' in shown
    assert 'efficientbench_validation_loss{run="mine"} 3.0' in shown
    assert f'efficientbench_record_tokens_per_s{{run="mine"}} {record.tokens_per_s!r}' in shown


def test_six_saves_are_two_rows(tmp_path: Path) -> None:
    for name in ("fast", "slow"):
        for seed in (1, 2, 3):
            assert saved(tmp_path / "rep" / name / f"seed_{seed}").seed == seed
    report = build_report(tmp_path / "rep")
    assert [(each.run, each.repeats) for each in report.records] == [("fast", 3), ("slow", 3)]
    assert report.damaged == []
    compared = CliRunner().invoke(app, ["compare", *(str(tmp_path / "rep" / name) for name in ("fast", "slow"))])
    assert compared.exit_code == 0, compared.output
    assert "A: fast × 3, B: slow × 3" in compared.stdout
    # The same seed again: the later record stands for the earlier one, and both are named.
    again = saved(tmp_path / "rep" / "again", seed=3)
    path = tmp_path / "rep" / "again" / "record.json"
    named = {"run": "fast", "variant": "fast", "config": {"own_loop": again.config["own_loop"] | {"run": "fast"}}}
    write_record(again.model_copy(update=named), path)
    report = build_report(tmp_path / "rep")
    assert [(each.run, each.repeats) for each in report.records] == [("fast", 3), ("slow", 3)]
    [line] = report.damaged
    assert re.fullmatch(r"fast, seed 3, of \S+ ran again at \S+: the latest of a seed stands for it", line)
    assert line in report.warnings


def test_token_counts_may_be_integers_of_any_library(tmp_path: Path) -> None:
    monitor = EfficiencyMonitor([HostSensor()])
    with monitor:
        for tokens in (np.int64(8), torch.tensor([True, True]).sum(), 3):
            with monitor.step(tokens=tokens):  # type: ignore[arg-type]
                pass
        monitor.begin_step()
        with pytest.raises(MetricsError, match=r"end_step: tokens: a whole number is needed, it is: 2\.5"):
            monitor.end_step(2.5)  # type: ignore[arg-type]
        monitor.drop_step()
    assert read_record(monitor.save(tmp_path, dtype="fp32", **SHAPE)).tokens == 13


class Failing(HostSensor):
    """A driver's sensor that cannot be opened."""

    scope = "gpu"

    def open(self) -> None:
        raise MetricsError("no driver")


def test_each_rank_counts_one_device_where_no_sensor_names_any(tmp_path: Path) -> None:
    monitor = EfficiencyMonitor([Failing()])
    with monitor, monitor.step(tokens=64):
        pass
    run = merge([replace(monitor.finish(), rank=rank) for rank in range(8)])
    loop = OwnLoop("mine", 16, 2, 16, "fp32", 0, None, 6e6, "given", 1e12)
    path = write_own_record(tmp_path, loop, run, 8, datetime.now(timezone.utc), 1.0)
    record = read_record(path)
    assert (record.devices, record.device_name) == (8, "unknown")


def test_reports_and_compare_accept_records_of_own_loops(tmp_path: Path) -> None:
    for name in ("one", "two"):
        saved(tmp_path / name, flops_per_token=6e6, peak_flops=1e12)
    reported = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert reported.exit_code == 0, reported.output
    with (tmp_path / "report.csv").open() as file:
        assert [row["run"] for row in csv.DictReader(file)] == ["one", "two"]
    compared = CliRunner().invoke(app, ["compare", str(tmp_path / "one"), str(tmp_path / "two")])
    assert compared.exit_code == 0, compared.output
    assert "tokens/s" in compared.stdout


def test_the_callback_runs_after_control_callbacks_and_before_loggers() -> None:
    from transformers.trainer_callback import DefaultFlowCallback, PrinterCallback

    callbacks = [DefaultFlowCallback(), PrinterCallback()]
    callback = EfficiencyCallback()
    callback.attach(SimpleNamespace(callback_handler=SimpleNamespace(callbacks=callbacks)))
    assert callbacks[1] is callback


def test_an_example_without_accelerate_ends_with_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(SystemExit, match="^this example needs accelerate, .*: pip install accelerate$"):
        runpy.run_path(str(EXAMPLES / "accelerate_loop.py"))


@pytest.mark.proof
@pytest.mark.parametrize("package", ["accelerate", "lightning"])
def test_an_example_of_another_trainer_writes_a_record(package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    (example,) = EXAMPLES.glob(f"{package}_*.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, str(example), str(tmp_path / "ours")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "10 measured" in done.stdout
    record = read_record(tmp_path / "ours" / "record.json")
    assert (record.tokens, record.global_batch_size, record.flops_per_token) == (10 * 8 * 64, 8, 6 * 128 * 256)


def test_a_device_without_a_known_peak_gets_mfu_of_the_measured_peak(tmp_path: Path) -> None:
    record = saved(tmp_path / "ours", model=Counting(8, 4))
    assert record.mfu is None
    assert record.measured_peak_flops is not None
    assert record.tokens_per_s is not None
    assert record.mfu_of_measured_peak == pytest.approx(192 * record.tokens_per_s / record.measured_peak_flops)
    # A peak that is given needs no measurement.
    assert saved(tmp_path / "given", model=Counting(8, 4), peak_flops=1e9).measured_peak_flops is None


def test_a_loops_peak_far_below_an_earlier_one_on_the_same_machine_is_not_used(tmp_path: Path) -> None:
    first = saved(tmp_path / "first", model=Counting(8, 4))
    assert first.measured_peak_flops is not None
    faster = first.model_copy(update={"measured_peak_flops": 1e3 * first.measured_peak_flops})
    write_record(faster, tmp_path / "faster" / "record.json")
    record = saved(tmp_path / "ours", model=Counting(8, 4))
    assert (record.measured_peak_flops, record.mfu_of_measured_peak) == (None, None)
    for name in ("measured_peak_flops", "mfu_of_measured_peak"):
        assert "in an earlier run on this machine" in record.unavailable[name]


def qwen2() -> Any:
    """A model of transformers with one narrow layer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    return Qwen2ForCausalLM(Qwen2Config(**shape, num_attention_heads=2, num_key_value_heads=1))


@pytest.mark.proof
def test_the_figures_reach_the_tensorboard_of_a_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from transformers import Trainer, TrainingArguments

    texts = [{"input_ids": text, "labels": text} for text in torch.randint(64, (16, 8))]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "model"),
        max_steps=4,
        per_device_train_batch_size=2,
        logging_steps=2,
        report_to="tensorboard",
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
    )
    trainer = Trainer(qwen2(), arguments, train_dataset=texts)
    EfficiencyCallback(tokens_per_step=16, warmup_steps=1, sensors=[HostSensor()]).attach(trainer)
    trainer.train()
    (folder,) = {file.parent for file in (tmp_path / "model").rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("train/efficiency/tokens_per_s")] == [2, 4]


class Stream(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Ten texts, whose number nobody knows before."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for text in torch.randint(64, (10, 8)):
            yield {"input_ids": text, "labels": text}


@pytest.mark.proof
def test_training_on_a_stream_that_ends_within_a_step_succeeds(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    # Five batches, of which a step takes two.
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "model"),
        max_steps=5,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        save_strategy="epoch",
        use_cpu=True,
        include_num_input_tokens_seen="all",
        report_to=[],
    )
    trainer = Trainer(qwen2(), arguments, train_dataset=Stream())
    callback = EfficiencyCallback(warmup_steps=0)
    callback.attach(trainer)
    trainer.train()
    assert callback.run is not None
    assert (len(callback.run.step_times_s), callback.run.tokens) == (5, 5 * 2 * 2 * 8)


def interrupted(monitor: EfficiencyMonitor, error: BaseException | type[BaseException], finished: bool = False) -> None:
    with monitor:
        for number in range(4):
            if finished and number == 3:
                monitor.finish()
                raise error
            with monitor.step(tokens=32):
                if number == 3:
                    raise error


def test_what_was_measured_until_an_error_can_be_saved(tmp_path: Path) -> None:
    for error in (ZeroDivisionError, KeyboardInterrupt):
        monitor = EfficiencyMonitor([HostSensor()])
        with pytest.raises(error):
            interrupted(monitor, error)
        assert "steps" in monitor.summary()
        record = read_record(monitor.save(tmp_path / error.__name__, dtype="fp32", **SHAPE))
        assert (record.tokens, record.steps_measured) == (96, 3)
    # Without a step there is nothing to keep.
    empty = EfficiencyMonitor([HostSensor()])
    with pytest.raises(ZeroDivisionError), empty:
        raise ZeroDivisionError
    with pytest.raises(MetricsError, match="the monitor is closed"):
        empty.save(tmp_path / "empty", **SHAPE)


def test_a_record_says_how_the_loop_ended(tmp_path: Path) -> None:
    for error, status in ((ZeroDivisionError("a rate of 0"), "failed"), (KeyboardInterrupt(), "stopped")):
        monitor = EfficiencyMonitor([HostSensor()])
        with pytest.raises(type(error)):
            interrupted(monitor, error)
        assert read_record(monitor.save(tmp_path / status, dtype="fp32", **SHAPE)).status == status
    report = build_report(tmp_path)
    [failure] = report.failures
    assert (failure.folder, failure.step, failure.reason) == ("failed", 3, "ZeroDivisionError: a rate of 0")
    assert report.rows.suites == []
    # Called without an error, as by a loop that sees a request to stop.
    monitor = EfficiencyMonitor([HostSensor()])
    monitor.start()
    with monitor.step(tokens=32):
        pass
    monitor.abandon()
    assert read_record(monitor.save(tmp_path / "asked", dtype="fp32", **SHAPE)).status == "stopped"
    # What went wrong after the measurement's end, or before a later one, is not the loop's end.
    monitor = EfficiencyMonitor([HostSensor()])
    with pytest.raises(ZeroDivisionError):
        interrupted(monitor, ZeroDivisionError, finished=True)
    assert read_record(monitor.save(tmp_path / "failed", dtype="fp32", **SHAPE)).status == "completed"
    assert build_report(tmp_path).failures == []


def test_a_batch_has_a_micro_batch_of_each_rank_however_few_tokens_are_counted(tmp_path: Path) -> None:
    monitor = EfficiencyMonitor([HostSensor()])
    with monitor, monitor.step(tokens=64):
        pass
    record = read_record(monitor.save(tmp_path, dtype="fp32", seq_len=1024, micro_batch_size=8))
    assert (record.micro_batch_size, record.global_batch_size) == (8, 8)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"validation_loss": -1}, "validation_loss=-1: the mean loss of a token, in nats, is not below 0"),
        ({"flops_per_token": -5}, "flops_per_token=-5: FLOPs of a token are above 0"),
        ({"peak_flops": -4}, "peak_flops=-4: FLOP/s of a device are above 0"),
        ({"peak_flops": math.inf}, "peak_flops=inf: FLOP/s of a device are above 0"),
    ],
)
def test_values_that_cannot_be_true_are_refused_and_the_rest_can_still_be_saved(
    tmp_path: Path, words: dict[str, Any], message: str
) -> None:
    monitor = EfficiencyMonitor([HostSensor()])
    with monitor:
        monitor.begin_step()
        with pytest.raises(MetricsError, match="end_step: tokens: 0 or more are needed, it is: -3"):
            monitor.end_step(-3)
        monitor.end_step(32)
    with pytest.raises(MetricsError, match=message):
        monitor.save(tmp_path, dtype="fp32", **SHAPE, **words)
    assert monitor.save(tmp_path, dtype="fp32", **SHAPE) is not None


def test_a_callback_refuses_a_peak_that_cannot_be_true_before_the_training() -> None:
    with pytest.raises(MetricsError, match="peak_flops=0: FLOP/s of a device are above 0"):
        EfficiencyCallback(peak_flops=0)


def test_a_loop_sends_to_several_sinks_of_a_kind(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    monitor = EfficiencyMonitor([HostSensor()])
    monitor.send_to(*(f"prometheus:{folder}" for folder in folders[:2]), name="mine")
    monitor.send_to(f"prometheus:{folders[2]}", name="mine")
    with monitor, monitor.step(tokens=32):
        pass
    monitor.save(tmp_path / "run", dtype="fp32", **SHAPE)
    assert [len(list(folder.glob("*.prom"))) for folder in folders] == [1, 1, 1]
