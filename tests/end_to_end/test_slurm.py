"""Jobs of a real Slurm: two nodes that train together, are stopped, resume and are cancelled; and arrays of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from replicas.places import Slurm, slurm_of_two_nodes
from support.command_line import LONG, efficientbench, losses, record, until

from efficientbench.cli.launch_script import Machines, NamedRun, by_slurm

pytestmark = pytest.mark.proof

Tiny = tuple[str, ...]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_of_two_nodes() as found:
        yield found


def script(tiny: Tiny, folder: Path, *words: str) -> str:
    """What `launch` prints for the run of `tiny` on two nodes without accelerators."""
    place = ("--to", "slurm", "--nodes", "2", "--devices-per-node", "0")
    done = efficientbench("launch", *tiny[1:], "device=cpu", *words, *place, cwd=folder, expect=0, stderr="")
    return done.stdout


def said(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.glob("*.out")))


def wait_for_steps(slurm: Slurm, job: str, folder: Path, said_in: Path, count: int = 3) -> None:
    """Returns once a job has trained so many steps; fails where it does not run."""
    slurm.wait_until(job, "RUNNING", lambda: said(said_in))
    until(
        lambda: len(losses(folder)) >= count or slurm.field(job, "JobState") != "RUNNING", f"{count} steps of job {job}"
    )
    assert slurm.field(job, "JobState") == "RUNNING", said(said_in)


def wait_for_free_nodes(slurm: Slurm) -> None:
    until(
        lambda: slurm.call("sinfo", "--noheader", "--partition=main", "--format=%t%D") == "idle2", "both nodes are idle"
    )


def test_a_preempted_job_resumes(slurm: Slurm, tiny: Tiny, tmp_path: Path) -> None:
    job = slurm.submit(script(tiny, tmp_path, "training.steps=500"), tmp_path)
    folder = tmp_path / "gqa_1.5B_smoke"
    wait_for_steps(slurm, job, folder, tmp_path)
    urgent = ("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true")
    slurm.call("sbatch", *urgent, cwd=tmp_path)
    slurm.wait_until(job, "PENDING", lambda: said(tmp_path))
    assert "stopped after saving its state: requeued" in said(tmp_path)
    assert (record(folder)["status"], len(losses(folder)) < 500) == ("stopped", True)
    # It would wait for two minutes; within the second in which its nodes are done with it, slurmd refuses to start it.
    wait_for_free_nodes(slurm)
    slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now+3")
    slurm.wait_until(job, "COMPLETED", lambda: said(tmp_path))
    output, content = said(tmp_path), record(folder)
    assert (output.count("2 ranks (tp 1, pp 1, dp 2)"), output.count("resumes after step")) == (4, 1)
    # No step is missing, and none was trained twice.
    assert (content["status"], content["dp"], len(losses(folder))) == ("completed", 2, 500)


def test_array_tasks_stop_independently_and_a_cancelled_one_is_not_requeued(
    slurm: Slurm, tiny: Tiny, tmp_path: Path
) -> None:
    runs = [NamedRun(name, (*tiny[3:], "device=cpu", *LONG), True) for name in ("gqa_1.5B", "rope_1.5B")]
    job = slurm.submit(by_slurm(runs, Machines(1, 0), []), tmp_path)
    folders = {f"{job}_{index}": tmp_path / f"{run.name}_smoke" for index, run in enumerate(runs)}
    for task, folder in folders.items():
        wait_for_steps(slurm, task, folder, tmp_path)
    # One of the tasks has the number of the whole array: what stops it must leave the other alone.
    stopped, other = sorted(folders, key=lambda task: slurm.field(task, "JobId") != job)
    assert (slurm.field(stopped, "JobId"), slurm.field(other, "JobId") != job) == (job, True)
    # As Slurm itself does before the time limit (`--signal=B:TERM@120`).
    slurm.call("scancel", "--batch", "--signal=TERM", stopped)
    slurm.wait_until(stopped, "PENDING", lambda: said(tmp_path))
    assert slurm.field(other, "JobState") == "RUNNING"

    slurm.call("scancel", job)
    slurm.wait_until(other, "CANCELLED", lambda: said(tmp_path))
    wait_for_free_nodes(slurm)
    assert [slurm.field(task, "JobState") for task in folders] == ["CANCELLED", "CANCELLED"]
    assert [record(folder)["status"] for folder in folders.values()] == ["stopped", "stopped"]
    assert said(tmp_path).count("requeued") == 1
