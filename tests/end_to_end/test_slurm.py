"""Jobs of a real Slurm: two nodes that train together, are stopped, go on and are cancelled; and arrays of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import efficientbench, losses, record, until
from support.places import Slurm, slurm_of_two_nodes

from efficientbench.launch_script import Machines, NamedRun, by_slurm

pytestmark = pytest.mark.proof

Tiny = tuple[str, ...]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_of_two_nodes() as found:
        yield found


def script(tiny: Tiny, folder: Path, *words: str) -> str:
    """What `launch` prints for the run of `tiny` on two nodes without accelerators."""
    place = ("--to", "slurm", "--nodes", "2", "--devices-per-node", "0")
    done = efficientbench("launch", *tiny[1:], "device=cpu", *words, *place, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def said(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.glob("*.out")))


def test_a_job_that_is_stopped_goes_on_in_the_queue(slurm: Slurm, tiny: Tiny, tmp_path: Path) -> None:
    job = slurm.submit(script(tiny, tmp_path, "training.steps=400"), tmp_path)
    folder = tmp_path / "gqa_1.5B_smoke"
    until(lambda: len(losses(folder)) >= 3 or slurm.state(job) != "RUNNING", "3 steps")
    # As Slurm itself does before the time limit (`--signal=B:TERM@120`).
    slurm.call("scancel", "--batch", "--signal=TERM", job)
    slurm.wait_until(job, "PENDING", lambda: said(tmp_path))
    assert "stopped with its state saved: requeued" in said(tmp_path)
    assert 3 <= len(losses(folder)) < 400
    # It would wait for two minutes.
    slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm.wait_until(job, "COMPLETED", lambda: said(tmp_path))
    content = record(folder)
    assert (content["status"], content["dp"]) == ("completed", 2)
    assert said(tmp_path).count("2 ranks (tp 1, pp 1, dp 2)") == 4


def test_a_job_that_a_user_cancels_saves_and_stays_away(slurm: Slurm, tiny: Tiny, tmp_path: Path) -> None:
    job = slurm.submit(script(tiny, tmp_path, "training.steps=20000"), tmp_path)
    folder = tmp_path / "gqa_1.5B_smoke"
    until(lambda: len(losses(folder)) >= 3 or slurm.state(job) != "RUNNING", "3 steps")
    slurm.call("scancel", job)
    slurm.wait_until(job, "CANCELLED", lambda: said(tmp_path))
    until(lambda: "idle2" in slurm.call("sinfo", "--noheader", "--format=%t%D"), "the nodes are free")
    assert slurm.state(job) == "CANCELLED"
    assert record(folder)["status"] == "stopped"
    assert "requeued" not in said(tmp_path)


def test_the_runs_of_an_array_are_stopped_one_by_one(slurm: Slurm, tiny: Tiny, tmp_path: Path) -> None:
    words = (*tiny[3:], "device=cpu", "training.steps=20000")
    runs = [NamedRun(name, words, True) for name in ("gqa_1.5B", "rope_1.5B")]
    job = slurm.submit(by_slurm(runs, Machines(1, 0), []), tmp_path)
    tasks = [f"{job}_0", f"{job}_1"]
    for task, run in zip(tasks, runs, strict=True):
        folder = tmp_path / f"{run.name}_smoke"
        until(lambda: len(losses(folder)) >= 3 or slurm.state(task) != "RUNNING", f"3 steps of {task}")  # noqa: B023
    # One of the tasks has the number of the whole array: what stops it must leave the other alone.
    stopped, other = sorted(tasks, key=lambda task: slurm.number(task) != job)
    assert (slurm.number(stopped), slurm.state(other)) == (job, "RUNNING")
    slurm.call("scancel", "--batch", "--signal=TERM", stopped)
    slurm.wait_until(stopped, "PENDING", lambda: said(tmp_path))
    assert slurm.state(other) == "RUNNING"
    slurm.call("scancel", job)
    slurm.wait_until(other, "CANCELLED", lambda: said(tmp_path))
