"""A resumed run's files are cut back to the step that it resumes from."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from support.metrics_parts import HandClock, measure_steps

from efficientbench.metrics.records.sinks.steplog import StepLog, cut_steps, read_steps
from efficientbench.metrics.records.sinks.tensorboard import TensorBoardLog, cut_scalars


def test_steps_after_the_resumed_step_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    with closing(StepLog(path)) as log:
        for step in range(1, 8):
            log.write("step", {"step": step, "loss": 9.0 - step})
            if step % 2 == 0:
                log.write("evaluation", {"step": step, "loss": 1.0})
        # A stopped run has written its costs; it writes them again at its end.
        log.write("quality", {"step": 2, "train_s": 0.5})
    with path.open("ab") as file:
        file.write(b'{"kind": "step", "st')
    for _ in range(2):
        cut_steps(path, 4)
        assert [(line["kind"], line["step"]) for line in read_steps(path)] == [
            *(("step", 1), ("step", 2), ("evaluation", 2), ("step", 3), ("step", 4), ("evaluation", 4)),
        ]
    assert path.read_bytes().endswith(b"\n")
    cut_steps(tmp_path / "none.jsonl", 4)
    cut_steps(path, 0)
    assert read_steps(path) == []


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"7", b"\xff", b"[" * 100_000, b'{"step": 3}', b'{"kind": "step", "step": "3"}']
)
def test_lines_after_a_damaged_line_are_lost_and_reported(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "steps.jsonl"
    with closing(StepLog(path)) as log:
        for step in range(1, 8):
            log.write("step", {"step": step})
    lines = path.read_bytes().split(b"\n")
    lines[2] = damage
    path.write_bytes(b"\n".join(lines))
    lost = cut_steps(path, 4)
    assert lost is not None
    assert lost.startswith("steps.jsonl, line 3: damaged, it ")
    assert lost.endswith(": its lines after step 2 are lost")
    assert [line["step"] for line in read_steps(path)] == [1, 2]
    assert cut_steps(path, 4) is None


def test_a_damaged_line_after_the_resumed_step_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"kind": "step", "step": 1}\n{"kind": "step", "step": 2}\n{\n')
    assert cut_steps(path, 1) is None


def test_costs_of_a_stopped_run_are_cut_even_where_no_step_follows(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    with closing(StepLog(path)) as log:
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


def log_scalars(folder: Path, steps: Iterable[int]) -> None:
    """Log a run's attempt of these steps, which has a file of its own."""
    with closing(TensorBoardLog(folder)) as log:
        for step in steps:
            log.scalars("step", step, {"train/loss": step / 2, "efficiency/mfu": None})
            log.scalars("tokens", step * 100, {"by_tokens/train_loss": step / 2})


def test_scalars_are_cut_on_both_axes(tmp_path: Path) -> None:
    log_scalars(tmp_path, range(1, 8))
    before = scalars(tmp_path)
    assert set(before) == {"train/loss", "by_tokens/train_loss"}  # what is None is left out
    (path,) = tmp_path.iterdir()
    # As a killed process leaves it.
    path.write_bytes(path.read_bytes()[:-7])
    assert cut_scalars(tmp_path, 3, 300) == []
    assert scalars(tmp_path) == {tag: values[:3] for tag, values in before.items()}
    log_scalars(tmp_path, [4])
    assert [event[:2] for event in scalars(tmp_path)["train/loss"]] == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]
    cut_scalars(tmp_path / "none", 3, 300)


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6])
def test_scalars_after_a_damaged_event_are_lost_and_reported(tmp_path: Path, place: float) -> None:
    log_scalars(tmp_path, range(1, 8))
    before = scalars(tmp_path)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)
    [lost] = cut_scalars(tmp_path, 6, 600)
    kept = scalars(tmp_path).get("train/loss", [])
    assert kept == before["train/loss"][: len(kept)]
    assert len(kept) < 6
    assert lost == f"{path.name}: damaged, its scalars after step {len(kept)} are lost"
    assert cut_scalars(tmp_path, len(kept), 100 * len(kept)) == []


def killed_at(change: int, folder: Path) -> bool:
    """Cut the scalars in a process that kills itself at change number `change` of a file; return whether it did."""
    child = os.fork()
    if child == 0:
        changes = itertools.count(1)

        def kill(event: str, arguments: tuple[object, ...]) -> None:
            changed = event in ("open", "os.rename", "os.remove") and str(folder) in str(arguments[0])
            if changed and next(changes) == change:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        try:
            cut_scalars(folder, 3, 300)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_killed_cut_duplicates_no_scalar(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    for steps in (range(1, 3), range(3, 8)):
        log_scalars(earlier, steps)
    last = {"train/loss": 3, "by_tokens/train_loss": 300}
    expected = {tag: [each for each in values if each[0] <= last[tag]] for tag, values in scalars(earlier).items()}
    for change in itertools.count(1):
        folder = tmp_path / str(change)
        shutil.copytree(earlier, folder)
        killed = killed_at(change, folder)
        cut_scalars(folder, 3, 300)
        assert scalars(folder) == expected, change
        if not killed:
            break
    assert change > 4


@pytest.mark.parametrize("before", [0, 100])
def test_measured_steps_are_numbered_after_those_of_earlier_attempts(before: int) -> None:
    run = measure_steps(HandClock(), times_s=[1, 1, 1, 1], warmup_steps=2, steps_before=before)
    # Each attempt has its warm-up: caches are cold again.
    assert run.step_numbers == (before + 3, before + 4)
