"""An interrupted run resumes with the same command; its files are those of an uninterrupted run."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import (
    TIME_LIMIT_S,
    TINY,
    Finished,
    damage,
    efficientbench,
    interrupted,
    losses,
    record,
    started,
    steps,
    until,
    wait_for_steps,
    workers,
)

from efficientbench.training.checkpoints.manifest import checkpoint_folder, complete, find_good

Tiny = tuple[str, ...]
RUN = ("training.steps=40", "training.validation_interval=8", "checkpoint.interval=10")


@pytest.fixture
def words(tiny: Tiny) -> Tiny:
    """The arguments of the run that the tests interrupt."""
    return (*tiny, *RUN)


@pytest.fixture(scope="module")
def whole(train: Callable[..., Finished]) -> Path:
    """The folder of a run that nothing disturbed."""
    finished = train(*RUN)
    assert finished.done.returncode == 0, finished.done.stderr
    return finished.folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Path:
    """The folder of that run as it is after a kill in step 24 or a little later."""
    output = tmp_path_factory.mktemp("killed")
    words = ("run", "gqa_1.5B", "--smoke", f"output={output}", f"data.cache={cache}", *TINY, *RUN)
    assert interrupted(output / "gqa_1.5B_smoke", words, signal.SIGKILL, 24) == 1
    return output / "gqa_1.5B_smoke"


def told(folder: Path) -> list[tuple[str, int, float]]:
    """Every step and validation with its loss, in order."""
    return [
        (line["kind"], line["step"], line["loss"]) for line in steps(folder) if line["kind"] not in ("quality", "lost")
    ]


def learned(content: dict[str, Any]) -> list[Any]:
    """What a record has of the model, without what a clock measured."""
    values = [content[name] for name in ("status", "validation_loss", "train_loss", "bits_per_byte")]
    return [*values, *((point["step"], point["tokens"], point["loss"]) for point in content["quality_curve"])]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of the values that no clock measured."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = str(folder / "tensorboard")
    events = EventAccumulator(path, size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if "loss" in tag or tag == "train/tokens"]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


@pytest.mark.proof
def test_a_run_stopped_and_then_killed_ends_as_an_uninterrupted_one(words: Tiny, folder: Path, whole: Path) -> None:
    assert interrupted(folder, words, signal.SIGTERM, 5) == 143
    saved = find_good(folder)[0]
    assert saved is not None
    stopped_after = int(saved.name.removeprefix("step_"))
    # A stop is answered after the step in which it comes, and that step's state is saved.
    assert told(folder)[-1][:2] == ("step", stopped_after)
    assert interrupted(folder, words, signal.SIGKILL, max(stopped_after + 3, 23)) == 1
    killed_after = int(complete(folder)[-1].name.removeprefix("step_"))
    done = efficientbench(*words, expect=0)
    assert f"resumes after step {killed_after}, from {checkpoint_folder(folder, killed_after)}" in done.stdout
    # One run, as if nothing had happened: bit for bit.
    assert told(folder) == told(whole)
    assert scalars(folder) == scalars(whole)
    found, expected = record(folder), record(whole)
    assert (found["resumed_after_steps"], expected["resumed_after_steps"]) == ([stopped_after, killed_after], [])
    assert found["steps_measured"] == 40 - killed_after - 1
    # Set-up came three times, and the killed attempt had worked after its checkpoint.
    assert found["wall_s"] - found["restarts_s"] > found["start_s"] > expected["restarts_s"] == 0
    assert found["restarts_s"] > found["start_s"]
    assert learned(found) == learned(expected)
    # What earlier attempts measured is not claimed: those tokens are charged at the measured steps' mean rate.
    assert [point["measured_tokens"] for point in found["quality_curve"] if point["step"] <= killed_after][0] == 0
    totals = [line["tokens_total"] for line in steps(folder) if line["kind"] == "step"]
    assert totals == [128 * number for number in range(1, 41)]
    assert not {"previous", "failure.json"} & {path.name for path in folder.iterdir()}


@pytest.mark.proof
def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(
    words: Tiny, folder: Path, killed: Path, whole: Path
) -> None:
    shutil.copytree(killed, folder)
    older, newest = complete(folder)
    file = newest / "__0_0.distcp"
    damage(file)
    done = efficientbench(*words, expect=0)
    assert f"skipped: {file}: damaged, its SHA-256 is not that of the manifest" in done.stdout
    assert f"resumes after step 10, from {older}" in done.stdout
    assert told(folder) == told(whole)


@pytest.mark.proof
def test_damaged_lines_of_the_step_log_are_cut_and_reported(
    words: Tiny, folder: Path, killed: Path, whole: Path
) -> None:
    shutil.copytree(killed, folder)
    lines = (folder / "steps.jsonl").read_bytes().split(b"\n")
    lines[4] = lines[4][:9]
    (folder / "steps.jsonl").write_bytes(b"\n".join(lines))
    done = efficientbench(*words, expect=0)
    (lost,) = record(folder)["lost"]
    assert f"warning: {lost}" in done.stdout
    assert lost.startswith("steps.jsonl, line 5: damaged")
    assert [step for _, step, _ in told(folder)][:5] == [1, 2, 3, 4, 21]
    assert learned(record(folder)) == learned(record(whole))


@pytest.mark.proof
def test_a_run_resumes_after_its_text_has_moved(words: Tiny, tmp_path: Path, folder: Path, shared_data: Path) -> None:
    before, moved = tmp_path / "here.txt", tmp_path / "there.txt"
    shutil.copy(shared_data / "fineweb_edu" / "fineweb_sample.txt", before)
    assert interrupted(folder, (*words, f"data.path={before}"), signal.SIGKILL, 12) == 1
    before.rename(moved)
    done = efficientbench(*words, f"data.path={moved}", expect=0)
    assert "resumes after step 10" in done.stdout
    efficientbench(*words, f"data.path={moved}", f"output={tmp_path / 'whole'}", expect=0)
    assert told(folder) == told(tmp_path / "whole" / folder.name)


@pytest.mark.proof
def test_fresh_starts_anew(words: Tiny, folder: Path, killed: Path) -> None:
    shutil.copytree(killed, folder)
    done = efficientbench(*words, "--fresh", expect=0)
    assert "resumes" not in done.stdout
    assert (record(folder)["resumed_after_steps"], len(losses(folder))) == ([], 40)
    assert len(list((folder / "previous").iterdir())) == 1


@pytest.mark.proof
def test_repeats_resume(tiny: Tiny, tmp_path: Path) -> None:
    folder = tmp_path / "gqa_1.5B_smoke" / "seed_1234"
    words = (*tiny, *RUN, "--repeat", "2")
    assert interrupted(folder, words, signal.SIGKILL, 14) == 1
    done = efficientbench(*words, "parallel.tp=2", expect=0)
    assert f"resumes after step 10, from {checkpoint_folder(folder, 10)}" in done.stdout
    assert record(folder)["resumed_after_steps"] == [10]
    assert record(folder.with_name("seed_1235"))["resumed_after_steps"] == []


@pytest.mark.proof
def test_no_writer_outlives_its_rank(tiny: Tiny, folder: Path) -> None:
    words = (*tiny, "training.steps=20000", "checkpoint.interval=1", "checkpoint.asynchronous=true")
    with started(*words) as run:
        wait_for_steps(folder, 6, run)
        (rank,) = workers(run.pid)
        until(lambda: rank.children(), "a process that writes")
        family = rank.children(recursive=True)
        rank.kill()
        run.communicate(timeout=TIME_LIMIT_S)
    until(lambda: not any(process.is_running() for process in family), "the writer's end", limit_s=5)
    assert find_good(folder)[0] is not None
