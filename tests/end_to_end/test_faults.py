"""Faults injected into real runs: each ends soon, with the reason first, on every node."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.command_line import (
    LONG,
    ROOT,
    TIME_LIMIT_S,
    Finished,
    children,
    command,
    efficientbench,
    environment,
    failure,
    free_port,
    record,
    started,
    stop_in_a_step,
    until,
    wait_for_steps,
    words_of,
    workers,
)

pytestmark = pytest.mark.proof

Tiny = tuple[str, ...]
TWO = "parallel.tp=2"
HANG = "faults.hang_limit_s=8"
RUN = "gqa_1.5B_smoke"


@contextmanager
def two_nodes(tiny: Tiny, folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Two command lines of one rank each, as a cluster's scheduler would start them, once they have trained 2 steps."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    with (
        started(*tiny, *LONG, *words, "dlc", **place, RANK="1") as second,
        started(*tiny, *LONG, *words, "dlc", **place, RANK="0") as first,
    ):
        wait_for_steps(folder / RUN, 2, first)
        yield first, second


def end(run: subprocess.Popen[str], exit_code: int = 1) -> str:
    """Stderr of a run that ends by itself, with this exit code."""
    stdout, stderr = run.communicate(timeout=TIME_LIMIT_S)
    assert run.returncode == exit_code, stderr
    assert "Traceback" not in stdout + stderr
    return stderr


def test_a_non_finite_loss_stops_the_run(tiny: Tiny, tmp_path: Path) -> None:
    done = efficientbench(*tiny, TWO, "training.learning_rate=1e30", "training.gradient_clip=0", expect=1)
    found = failure(tmp_path / RUN)
    assert (found["kind"], found["rank"], found["step"] in (2, 3)) == ("non_finite", 0, True)
    for part in (f"error: rank 0: step {found['step']}: the ", "not finite on rank 0 (and on ranks 1)", "steps=N"):
        assert part in done.stderr
    assert "Traceback" not in done.stderr
    failed = record(tmp_path / RUN)
    assert failed["status"] == "failed"
    assert failed["unavailable"]["al_s"].startswith("the run failed (non finite): rank 0: step ")


SHARED = {
    "generate": ("--prompt", "The ", "--max-new-tokens", "20000"),
    "evaluate": ("--tasks", "passkey", "--lengths", "200", "--limit", "300", "--batch-tokens", "200"),
}
"""Command whose ranks share a run's model → options with which it works longer than any test waits."""


@pytest.mark.parametrize("command", SHARED)
def test_a_rank_of_a_shared_model_that_hangs_ends_all_and_is_named(
    command: str, train: Callable[..., Finished], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(train("parallel.tp=2", "model.vocab_size=1025").folder, folder)
    # The commands have the default limit, which is too long for a test.
    (tmp_path / "sitecustomize.py").write_text(
        "from efficientbench.config.schema import FaultsConfig\n"
        "FaultsConfig.model_fields['hang_limit_s'].default = 8.0\n"
        "FaultsConfig.model_rebuild(force=True)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with started(command, str(folder), *SHARED[command], "--tp", "2", PYTHONPATH=path) as run:
        # Before its ranks, the command starts and ends processes that have no number.
        until(lambda: sum("efficientbench.running" in words_of(each) for each in children(run.pid)) == 2, "two ranks")
        family = children(run.pid)
        stop_in_a_step(workers(run.pid)[1])
        told = end(run)
    assert told.startswith("error: rank 1: hung: no rank"), told
    assert "rank 1 did not arrive (in step " in told
    assert "its process is stopped (SIGSTOP)" in told
    assert not any(process.is_running() for process in family)


def test_a_rank_hung_outside_a_collective_is_distinguished_from_ranks_waiting_in_it(
    tiny: Tiny, tmp_path: Path, cache: str
) -> None:
    # Rank 0 waits for the lock of the sample index, which another program holds; rank 1 waits for rank 0.
    index = Path(cache) / "index"
    index.mkdir(parents=True, exist_ok=True)
    with (index / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with started(*tiny, TWO, HANG) as run:
            told = end(run)
    assert told.startswith(
        "error: rank 0: hung: no rank made progress for 8 s; rank 0 did not arrive (building model and data"
    )
    assert "at efficientbench.basics.files line " in told
    assert "rank 1" not in told


def test_a_rank_that_dies_ends_the_other_node_too(tiny: Tiny, tmp_path: Path) -> None:
    with two_nodes(tiny, tmp_path) as (first, second):
        (worker,), begin_s = workers(second.pid), time.monotonic()
        worker.kill()
        ends = [end(first), end(second)]
        assert time.monotonic() - begin_s < 15
    for told in ends:
        assert told.startswith("error: rank 1 on node 1: ended by SIGKILL"), told
    assert failure(tmp_path / RUN).items() >= {"kind": "lost_rank", "rank": 1}.items()


def test_a_hung_rank_on_another_node_is_named_on_all(tiny: Tiny, tmp_path: Path) -> None:
    with two_nodes(tiny, tmp_path, HANG) as (first, second):
        stop_in_a_step(workers(second.pid)[0])
        ends = [end(first), end(second)]
    for told in ends:
        assert told.startswith("error: rank 1 on node 1: hung: no rank made progress for 8 s; rank 1 did not arrive"), (
            told
        )


def test_a_stop_signal_that_reaches_the_second_node_stops_both(tiny: Tiny, tmp_path: Path) -> None:
    with two_nodes(tiny, tmp_path) as (first, second):
        second.terminate()
        ends = [end(each, 143) for each in (first, second)]
    assert ends[0].startswith("SIGTERM on node 1: the ranks have 60 s to save and end")
    assert ends[1].startswith("SIGTERM: the ranks have 60 s to save and end")
    assert "error" not in "".join(ends)
    assert (record(tmp_path / RUN)["status"], failure(tmp_path / RUN)["kind"]) == ("stopped", "stopped")


def test_memory_that_the_host_refuses_is_reported(tiny: Tiny, tmp_path: Path) -> None:
    # Weights of 1.8 GB, and as much for their gradients.
    words = ["model.layers=4", "model.hidden_size=2048", "model.ffn_hidden_size=16384"]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -v 3000000; exec "$@"', "bash", *command(*tiny, *words)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    found = failure(tmp_path / RUN)
    assert (found["kind"], found["reason"][:15]) == ("out_of_memory", "out of memory: ")


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup for memory in which processes may be put; needs root."""
    roots = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
    folder = next(root for root in roots if root.is_dir()) / f"efficientbench_test_{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("memory cgroups can only be made by root")
    limits = [folder / name for name in ("memory.limit_in_bytes", "memory.max") if (folder / name).exists()]
    if not limits:
        folder.rmdir()
        pytest.skip("no controller of memory can be used here")
    yield limits[0]
    until(lambda: not (folder / "cgroup.procs").read_text().strip(), "the cgroup's end")
    folder.rmdir()


@pytest.mark.alone
def test_a_rank_killed_by_the_kernel_for_its_memory_is_named(tiny: Tiny, tmp_path: Path, small_cgroup: Path) -> None:
    with started(*tiny, *LONG, TWO) as run:
        (small_cgroup.parent / "cgroup.procs").write_text(str(run.pid))
        until(lambda: children(run.pid), "a rank")
        # Less than two ranks need: set now, since the run would have refused to start with it.
        small_cgroup.write_text(str(250 << 20))
        told = end(run)
    assert "killed by the kernel, which had run out of memory for it" in told
    assert failure(tmp_path / RUN)["kind"] == "out_of_memory"
