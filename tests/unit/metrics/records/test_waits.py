"""How long ranks waited for each other: means over steps for each rank, means over ranks for the run."""

from __future__ import annotations

import pytest
from support.metrics_parts import HandClock, make_record, monitor_of, run_steps

from efficientbench.metrics import merge
from efficientbench.metrics.formulas.device_use import RankWaits
from efficientbench.metrics.monitoring.measurement import RankMeasurement
from efficientbench.metrics.records.facts import Quality, RunFacts
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.records.summarize import summarize

FACTS = RunFacts(1000, 1000, 2, 6e3, 7e3, 8e3, None, "not part of this test")


def measured(rank: int, *waited: tuple[float, float | None]) -> RankMeasurement:
    """Two steps after one of warm-up. `waited`: around each, what is waited before it and in it."""
    clock, told = HandClock(), iter(waited)
    options = {"waited": lambda: next(told)} if waited else {}
    with monitor_of(clock, warmup_steps=1, rank=rank, **options) as monitor:
        run_steps(monitor, clock, 1, 2, 2)
    return monitor.finish()


def record(*ranks: RankMeasurement) -> RunRecord:
    run = merge(ranks)
    summary = summarize(run, FACTS, Quality())
    return make_record({**summary.values, "unavailable": summary.unavailable, "rank_waits": list(run.waits)})


def test_only_waits_during_measured_steps_count() -> None:
    warm, outside = (8.0, 8.0), (50.0, 50.0)
    first = measured(0, outside, warm, outside, (0.25, 0.5), outside, (0.75, 0.5))
    second = measured(1, outside, warm, outside, (0.0, 1.0), outside, (0.0, 0.5))
    found = record(first, second)
    assert found.rank_waits == [RankWaits(0, 0.5, 0.5), RankWaits(1, 0.0, 0.75)]
    assert (found.exposed_communication_s, found.pipeline_bubble_s) == (0.25, 0.625)
    assert RunRecord.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("ranks", "reasons"),
    [
        ([measured(0)], ["a single rank waits for no other"] * 2),
        ([measured(0), measured(1)], ["nobody measured how long ranks waited"] * 2),
        ([measured(rank, *[(0.5, None)] * 6) for rank in (0, 1)], [None, "the pipeline has one stage"]),
    ],
)
def test_an_absent_wait_has_a_reason(ranks: list[RankMeasurement], reasons: list[str | None]) -> None:
    found = record(*ranks)
    names = ("exposed_communication_s", "pipeline_bubble_s")
    assert [found.unavailable.get(name) for name in names] == reasons
    assert [getattr(found, name) is None for name in names] == [reason is not None for reason in reasons]
