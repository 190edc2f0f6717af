"""What a run wrote before it was interrupted is cut back to the step that it goes on from."""

from __future__ import annotations

from pathlib import Path

import pytest

from metrics import EfficiencyMonitor
from metrics.report.tensorboard import TensorBoardLog, cut_scalars
from metrics.steplog import StepLog, cut_steps, read_steps


def test_steps_are_cut_behind_a_step(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    with StepLog(path) as log:
        for step in range(1, 8):
            log.write("step", {"step": step, "loss": 9.0 - step})
            if step % 2 == 0:
                log.write("evaluation", {"step": step, "loss": 1.0})
        # A run that was stopped has told its costs; they are told again at the end.
        log.write("quality", {"step": 2, "train_s": 0.5})
    with path.open("ab") as file:
        file.write(b'{"kind": "step", "st')
    cut_steps(path, 4)
    assert [(line["kind"], line["step"]) for line in read_steps(path)] == [
        *(("step", 1), ("step", 2), ("evaluation", 2), ("step", 3), ("step", 4), ("evaluation", 4)),
    ]
    assert path.read_bytes().endswith(b"\n")
    content = path.read_bytes()
    cut_steps(path, 4)
    assert path.read_bytes() == content
    cut_steps(tmp_path / "none.jsonl", 4)
    cut_steps(path, 0)
    assert read_steps(path) == []


def test_costs_of_a_stopped_run_are_cut_even_where_no_step_follows(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    with StepLog(path) as log:
        log.write("step", {"step": 1})
        log.write("quality", {"step": 1, "train_s": 0.5})
    cut_steps(path, 1)
    assert [line["kind"] for line in read_steps(path)] == ["step"]


def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    events.Reload()
    return {
        tag: [(event.step, event.value, event.wall_time) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_scalars_are_cut_on_both_axes(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    for step in range(1, 8):
        log.scalars(step, {"train/loss": step / 2})
        log.scalars(step * 100, {"by_tokens/train_loss": step / 2})
    log.close()
    before = scalars(tmp_path)
    (path,) = tmp_path.iterdir()
    # As a killed process leaves it.
    path.write_bytes(path.read_bytes()[:-7])
    cut_scalars(tmp_path, 3, 300)
    assert scalars(tmp_path) == {tag: values[:3] for tag, values in before.items()}
    log = TensorBoardLog(tmp_path)
    log.scalars(4, {"train/loss": 2.0})
    log.close()
    assert [event[:2] for event in scalars(tmp_path)["train/loss"]] == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]
    cut_scalars(tmp_path / "none", 3, 300)


@pytest.mark.parametrize("before", [0, 100])
def test_measured_steps_are_numbered_after_those_of_earlier_attempts(before: int) -> None:
    monitor = EfficiencyMonitor([], warmup_steps=2, steps_before=before)
    with monitor:
        for _ in range(4):
            with monitor.step(tokens=1):
                pass
    # Each attempt has its warm-up: caches are cold again.
    assert [step.number for step in monitor.finish().steps] == [before + 3, before + 4]
