"""Where the wall time of a fine-tuning goes, called as the Trainer calls it."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from support.metrics_parts import HandClock

pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
from efficientbench.finetuning.listeners import Spent, StepBegins
from efficientbench.metrics.records.record_parts import TimeSpent

NOTHING = (None, None, None)


def evaluated(spent: Spent, clock: HandClock, evaluation_s: float) -> None:
    """As `Tuner.evaluate` does."""
    spent.evaluation_begins()
    clock.pass_time(evaluation_s)
    spent.on_log(*NOTHING, logs={"eval_loss": 2.0})
    spent.on_evaluate(*NOTHING)


def trained(spent: Spent, clock: HandClock) -> None:
    """Three steps: a slow first one that is logged, one before a checkpoint, one before an evaluation."""
    begins = StepBegins(spent)
    clock.pass_time(5)
    evaluated(spent, clock, 2)
    clock.pass_time(1)
    begins.on_step_begin(*NOTHING)
    clock.pass_time(4)
    spent.on_step_end(*NOTHING)
    clock.pass_time(0.5)
    spent.on_log(*NOTHING, logs={"loss": 3.0})
    for _ in range(2):
        clock.pass_time(0.25)
        begins.on_step_begin(*NOTHING)
        clock.pass_time(2)
        spent.on_step_end(*NOTHING)
        clock.pass_time(3)
        spent.on_save(*NOTHING)
    evaluated(spent, clock, 1)
    clock.pass_time(0.5)


def test_each_second_of_wall_time_counts_for_one_part() -> None:
    clock = HandClock()
    begin_s = clock()
    spent = Spent(begin_s, 1, clock=clock)
    trained(spent, clock)
    clock.pass_time(7)
    spent.saved()
    clock.pass_time(0.5)
    found = spent.spent()
    assert found == TimeSpent(
        start_s=6,
        first_steps_s=2,
        productive_s=6,
        data_wait_s=0.5,
        evaluation_s=3,
        checkpoints_s=13.5,
        restarts_s=0,
        rest_s=1,
    )
    assert found.wall_s == sum(asdict(found).values()) == clock() - begin_s


def test_wall_time_is_unknown_after_an_earlier_attempt_without_it() -> None:
    clock = HandClock()
    spent = Spent(clock(), 1, {}, clock=clock)
    trained(spent, clock)
    assert (spent.spent(), spent.progress().keys()) == (None, {"elapsed_s"})


def test_a_resumed_fine_tuning_has_the_times_of_both_attempts_and_the_lost_time() -> None:
    clock = HandClock()
    first = Spent(clock(), 1, clock=clock)
    trained(first, clock)
    clock.pass_time(1)
    # In the middle of a checkpoint.
    kept = first.progress()
    assert kept["elapsed_s"] == 25.5
    clock.pass_time(100)
    second = Spent(clock(), 1, kept, 12, clock)
    assert second.elapsed_s == 25.5 + 12
    trained(second, clock)
    assert second.spent() == TimeSpent(
        start_s=6,
        first_steps_s=4,
        productive_s=12,
        data_wait_s=1,
        evaluation_s=6,
        checkpoints_s=13.5,
        restarts_s=18,
        rest_s=1.5,
    )
