"""When a checkpoint is due by time."""

from __future__ import annotations

from efficientbench.training.checkpoints.timing import TimeInterval


def test_by_default_checkpoints_take_a_hundredth_of_the_time_and_are_ten_minutes_apart() -> None:
    now_s = [0.0]
    interval = TimeInterval(None, lambda: now_s[0])
    now_s[0] = 599.0
    assert not interval.is_due()
    now_s[0] = 600.0
    assert interval.is_due()
    interval.begins()
    now_s[0] += 7.0
    interval.ends(saved=True)
    # Completing an asynchronous one holds up training, too.
    interval.begins()
    now_s[0] += 2.0
    interval.ends(saved=False)
    assert (interval.bound_s, interval.longest_s) == (900.0, 700.0)
    now_s[0] = 607.0 + 899.0
    assert not interval.is_due()
    now_s[0] = 607.0 + 900.0
    assert interval.is_due()


def test_an_interval_that_is_given_is_kept() -> None:
    now_s = [0.0]
    interval = TimeInterval(5.0, lambda: now_s[0])
    interval.begins()
    now_s[0] = 100.0
    interval.ends(saved=True)
    assert interval.bound_s == 5.0
    now_s[0] = 105.0
    assert interval.is_due()
    assert interval.announcement(7) == (
        "a kill loses at most 5 s of training and the step under way: a checkpoint follows that long after the one "
        "before, from step 7 on"
    )
