"""Where the wall time goes: parts from events on a clock moved by hand, over two attempts, and in the reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.metrics_parts import HandClock, make_record, measure_steps

from efficientbench.metrics.records.facts import UNBOUNDED, Quality, RunFacts
from efficientbench.metrics.records.record import FIGURES
from efficientbench.metrics.records.record_parts import NOT_TIMED, TimeSpent
from efficientbench.metrics.records.sinks.steplog import StepLog, cut_steps, keep_lost, time_lost
from efficientbench.metrics.records.summarize import summarize
from efficientbench.metrics.report.sections.rank_table import PARTS, wall_time_table
from efficientbench.training.events import (
    CheckpointEnded,
    CheckpointStarted,
    Event,
    RecheckEnded,
    RecheckStarted,
    StepEnded,
    StepStarted,
    ValidationEnded,
    ValidationStarted,
)
from efficientbench.worker.listeners.goodput import Goodput


class Loop:
    """A training loop whose batches and steps take the time that they are told to."""

    def __init__(self, **options: Any) -> None:
        self.clock = HandClock()
        device: Any = SimpleNamespace(stamp=self.clock, between_s=lambda before, after: after - before)
        self.measure: Any = SimpleNamespace(step_time_s=0.0)
        self.goodput = Goodput(self.clock.now_s, device, self.measure, 1, clock=self.clock, **options)
        self.batch_s = 0.0
        self.batches = SimpleNamespace(training_step=self._batches)
        self.goodput.attach(SimpleNamespace(batches=self.batches))  # type: ignore[arg-type]

    def _batches(self, step: int) -> Iterator[int]:
        for index in range(2):
            self.clock.pass_time(self.batch_s)
            yield index

    def between(self, begin: Event, end: Event, seconds: float) -> None:
        """Tell of both, with so many seconds between them and half a second of other work after them."""
        self.goodput.begins(begin)
        self.clock.pass_time(seconds)
        self.goodput.ends(end)
        self.clock.pass_time(0.5)

    def step(self, number: int, compute_s: float, batch_s: float) -> None:
        """A step of two micro-batches."""
        self.goodput.begins(StepStarted(number))
        self.batch_s, begin_s = batch_s, self.clock.now_s
        assert list(self.batches.training_step(number)) == [0, 1]
        self.clock.pass_time(compute_s)
        self.measure.step_time_s = self.clock.now_s - begin_s
        self.goodput.ends(StepEnded(number, 2.0, 1.0, 1e-3, 64, 64, skipped=False))
        self.clock.pass_time(0.5)


def worked(loop: Loop) -> Loop:
    """A first step of 11 s, two of 3 s, and one of everything else."""
    loop.clock.pass_time(20)
    for number, compute_s in enumerate((10.0, 2.0, 2.0), start=1):
        loop.step(number, compute_s, batch_s=0.5)
    loop.between(RecheckStarted(3), RecheckEnded(3, ()), 1)
    loop.between(ValidationStarted(3), ValidationEnded(3, 4.0, (4.0,), (9,), None, ""), 4)
    loop.between(CheckpointStarted(3), CheckpointEnded(3, still_writing=False), 5)
    return loop


EXPECTED = TimeSpent(
    start_s=20,
    first_steps_s=8,
    productive_s=6,
    data_wait_s=3,
    evaluation_s=5,
    checkpoints_s=5,
    restarts_s=0,
    rest_s=3,
)


def test_each_second_of_wall_time_counts_for_one_part() -> None:
    loop = worked(Loop())
    spent = loop.goodput.spent()
    assert spent == EXPECTED
    assert spent.wall_s == loop.clock.now_s - 100 == 50
    assert spent.goodput == 6 / 50


def test_a_recheck_reads_batches_that_no_step_waited_for() -> None:
    loop = worked(Loop())
    list(loop.batches.training_step(3))
    loop.step(4, 2.0, batch_s=0.0)
    spent = loop.goodput.spent()
    assert spent is not None
    assert spent.data_wait_s == EXPECTED.data_wait_s


def test_an_evaluation_between_steps_does_not_count_as_other_time() -> None:
    loop = worked(Loop())
    loop.goodput.evaluating(lambda event: loop.clock.pass_time(7))(StepStarted(4))
    spent = loop.goodput.spent()
    assert spent is not None
    assert (spent.evaluation_s, spent.rest_s) == (12, 3)


def test_a_resumed_run_has_the_times_of_both_attempts_and_the_lost_time(tmp_path: Path) -> None:
    first = worked(Loop())
    manifest: Any = SimpleNamespace(step=3, progress={**first.goodput.progress(), "elapsed_s": 50.0})
    steps = tmp_path / "steps.jsonl"
    assert time_lost(steps, 50) == 0
    with closing(StepLog(steps)) as log:
        log.write("step", {"step": 3, "elapsed_s": 40.0})
        log.write("step", {"step": 4, "elapsed_s": 62.0})
        log.write("sample", {"step": 4})
    lost_s = time_lost(steps, 50)
    assert lost_s == 12
    second = Loop(manifest=manifest, lost_s=lost_s)
    second.clock.pass_time(30)
    second.step(4, 10.0, batch_s=0.0)
    second.step(5, 2.0, batch_s=0.0)
    assert second.goodput.spent() == TimeSpent(
        start_s=20,
        first_steps_s=16,
        productive_s=10,
        data_wait_s=3,
        evaluation_s=5,
        checkpoints_s=5,
        restarts_s=42,
        rest_s=4,
    )


def test_of_several_attempts_in_a_row_that_saved_nothing_all_are_known(tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"

    def attempt(step: int, kept_s: float, *worked_s: float) -> float:
        lost_s = time_lost(steps, kept_s)
        cut_steps(steps, step)
        with closing(StepLog(steps)) as log:
            keep_lost(log, step, lost_s, kept_s)
            for number, each_s in enumerate(worked_s, start=step + 1):
                log.write("step", {"step": number, "elapsed_s": kept_s + lost_s + each_s})
        return lost_s

    assert attempt(0, 0, 10.0, 20.0, 30.0) == 0
    # After a checkpoint of step 2, at 21 s: two attempts, and one that is killed before its first step.
    assert [attempt(2, 21.0, 40.0), attempt(2, 21.0), attempt(2, 21.0, 5.0, 6.0)] == [9, 49, 49]
    # Step 4 was saved at 76 s and is damaged.
    assert attempt(4, 76.0, 100.0) == 0
    assert attempt(2, 21.0) == 155


def test_times_are_unknown_after_a_checkpoint_without_them() -> None:
    manifest: Any = SimpleNamespace(step=3, progress={"elapsed_s": 50.0})
    loop = worked(Loop(manifest=manifest))
    assert (loop.goodput.spent(), loop.goodput.progress()) == (None, {})


FACTS = RunFacts(1000, 1000, 1, 6e3, 7e3, 8e3, 1e6, "datasheet")


def test_the_record_has_the_parts_of_wall_time_or_a_reason() -> None:
    run = measure_steps(HandClock(), times_s=(1, 2))
    values = summarize(run, FACTS, Quality(), spent=EXPECTED, checkpoint_bound_s=600).values
    assert (values["wall_s"], values["goodput"], values["checkpoint_bound_s"]) == (50, pytest.approx(0.12), 600)
    assert sum(values[part] for part in PARTS) == values["wall_s"]
    absent = summarize(run, FACTS, Quality())
    assert {absent.unavailable[name] for name in ("wall_s", "goodput", *PARTS)} == {NOT_TIMED}
    assert absent.unavailable["checkpoint_bound_s"] == UNBOUNDED


def test_the_report_has_a_row_for_each_run_that_knows_its_time() -> None:
    parts = {name: float(getattr(EXPECTED, name)) for name in PARTS}
    timed = make_record({**parts, "wall_s": 50.0, "goodput": 0.12})
    table = wall_time_table([timed, make_record({"run": "other"})])
    assert table.rows == [("gqa_1.5B", "50", "12.0%", "40.0%", "16.0%", "6.0%", "10.0%", "10.0%", "0.0%", "6.0%")]
    assert len(table.notes) == len(PARTS)
    assert not wall_time_table([make_record()])
    assert set(PARTS) < set(FIGURES)
