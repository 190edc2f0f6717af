"""Sweeps by the command line: they survive failures and kill -9, and share a folder with each other."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.command_line import (
    LONG,
    TIME_LIMIT_S,
    TINY,
    children,
    command,
    efficientbench,
    environment,
    failure,
    losses,
    record,
    started,
    until,
    wait_for_steps,
)
from support.terminal import Terminal

Words = tuple[str, ...]
HOSTILE = "$(touch pwned); `touch pwned`\n'../../pwned\".txt"
MEMORY_BYTES = 3_000_000_000


@pytest.fixture
def sweep(tmp_path: Path, cache: str) -> Words:
    """The arguments of a sweep of the smallest model, whose suite is `tmp_path`."""
    return ("sweep", "--only", "gqa_1.5B", "--smoke", f"output={tmp_path}", f"data.cache={cache}", *TINY)


def states(suite: Path) -> dict[str, dict[str, Any]]:
    """The state of every run in the queue, by the part of its name that differs."""
    files = sorted((suite / "sweep" / "queue").glob("*.json"))
    return {path.stem.removeprefix("gqa_1.5B_smoke__"): json.loads(path.read_text(encoding="utf-8")) for path in files}


@pytest.mark.proof
def test_a_sweep_continues_after_a_failure_and_skips_complete_runs(sweep: Words, tmp_path: Path) -> None:
    # A rate at which the weights, and then the loss, are no longer finite.
    words = (*sweep, "--set", "training.learning_rate=1e38,1e-3", "training.gradient_clip=0")
    done = efficientbench(*words, expect=1)
    assert "Traceback" not in done.stdout + done.stderr
    found = states(tmp_path)
    failed, good = found["learning_rate=1e+38"], found["learning_rate=0.001"]
    assert (failed["state"], failed["kind"], good["state"]) == ("failed", "non_finite", "done")
    assert record(tmp_path / "gqa_1.5B_smoke__learning_rate=0.001")["run"] == "gqa_1.5B__learning_rate=0.001"
    for shown in ("gqa_1.5B__learning_rate=0.001 (smoke)", "Runs that did not come to their end"):
        assert shown in done.stdout
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "\n| gqa_1.5B_smoke__learning_rate=1e+38 | non finite |" in report

    # As a sweep leaves it whose runs of the same folder were refused for another configuration.
    stale = tmp_path / "gqa_1.5B_smoke__learning_rate=0.001" / "failure.json"
    stale.write_text(json.dumps({"kind": "mistake", "reason": "refused"}), encoding="utf-8")
    again = efficientbench(*words, expect=1)
    assert (stale.exists(), states(tmp_path)) == (False, found)
    for shown in ("learning_rate=0.001: complete, kept", "learning_rate=1e+38: failed (non_finite)"):
        assert shown in again.stdout
    assert "started" not in again.stdout


@pytest.mark.proof
def test_hostile_names_reach_no_shell_and_stay_in_the_folder(sweep: Words, tmp_path: Path) -> None:
    # A text that is there, or the sweep would be refused, and too short to train on.
    (tmp_path / HOSTILE.partition("/")[0]).mkdir()
    (tmp_path / HOSTILE).write_text("One document.\n")
    efficientbench(*sweep, "--set", f"data.path={HOSTILE}", cwd=tmp_path, expect=1)
    ((name, state),) = states(tmp_path).items()
    assert (state["state"], state["kind"]) == ("failed", "mistake")
    assert f"data.path={HOSTILE}" in state["command"]
    assert "path=touch-pwned-touch-pwned" in name
    assert not [*tmp_path.parent.glob("*pwned*"), *tmp_path.rglob("pwned")]


def test_the_plan_is_printed_and_nothing_is_written(sweep: Words, tmp_path: Path) -> None:
    done = efficientbench(
        *sweep, "--set", "training.seq_len=32,64", "--set", "parallel.tp=1,3", "--dry-run", expect=0, stderr=""
    )
    for shown in (
        "gqa_1.5B_smoke__tp=1__seq_len=64",
        "GFLOP/s a core assumed",
        "n/a energy: no record in this folder has the energy of a run",
        "gqa_1.5B_smoke__tp=3__seq_len=32, gqa_1.5B_smoke__tp=3__seq_len=64: refused (mistake): ",
    ):
        assert shown in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proof
def test_two_sweeps_share_the_work_and_one_survives_the_other(sweep: Words, tmp_path: Path) -> None:
    words = (*sweep, "--repeat", "2", "training.steps=500")
    folder = tmp_path / "gqa_1.5B_smoke"
    with started(*words) as first:
        until(lambda: losses(folder / "seed_1234"), "the first run's first step")
        with started(*words) as second:
            until(lambda: (tmp_path / "sweep" / "queue").exists() and children(second.pid) == [], "the second waits")
            family = children(first.pid)
            os.kill(first.pid, signal.SIGKILL)
            _, stderr = second.communicate(timeout=TIME_LIMIT_S)
    assert second.returncode == 0, stderr
    assert not any(process.is_running() for process in family)
    found = states(tmp_path)
    assert [state["state"] for state in found.values()] == ["done", "done"]
    order = json.loads((tmp_path / "sweep" / "order.json").read_text(encoding="utf-8"))
    assert (order["order"], type(order["seed"])) == ([f"gqa_1.5B_smoke__seed_{seed}" for seed in (1234, 1235)], int)
    # The one that was cut off was done again, by the sweep that was left; the other was done once.
    assert [state["attempts"] for state in found.values()] == [2, 1]
    logs = [path.read_text(encoding="utf-8") for path in (tmp_path / "sweep" / "log").iterdir()]
    assert (len(logs), "in use by another run" in "".join(logs)) == (2, False)
    assert [record(folder / f"seed_{seed}")["status"] for seed in (1234, 1235)] == ["completed", "completed"]


@pytest.mark.proof
def test_a_closed_terminal_lets_running_runs_save_and_starts_no_more(sweep: Words, tmp_path: Path) -> None:
    terminal = Terminal((*sweep, *LONG, "--repeat", "2"))
    wait_for_steps(tmp_path / "gqa_1.5B_smoke" / "seed_1234", 1, terminal.process)
    assert terminal.close() == 129
    assert [state["state"] for state in states(tmp_path).values()] == ["stopped", "queued"]
    assert record(tmp_path / "gqa_1.5B_smoke" / "seed_1234")["status"] == "stopped"


@pytest.mark.proof
def test_a_time_limit_is_a_row_with_its_reason(sweep: Words, tmp_path: Path) -> None:
    done = efficientbench(*sweep, *LONG, "--time-limit", "30s", expect=1)
    (state,) = states(tmp_path).values()
    assert (state["state"], state["kind"], "time limit" in done.stdout) == ("failed", "time_limit", True)
    assert state["reason"].startswith("the time limit of 30 s was reached after step ")
    written = failure(tmp_path / "gqa_1.5B_smoke")
    assert (written["kind"], written["step"] > 0) == ("time_limit", True)


@pytest.mark.proof
def test_a_run_out_of_memory_is_retried_with_a_smaller_micro_batch(sweep: Words, tmp_path: Path) -> None:
    """A real allocation fails: the activations of 17 sequences exceed the address space, those of one do not.

    17 is prime, so that the next smaller micro-batch is 1.
    """
    short = ("training.steps=2", "measurement.warmup_steps=0", "measurement.min_steps=2")
    wide = ("model.ffn_hidden_size=8192", "training.seq_len=512", *short)
    batch = ("training.micro_batch_size=17", "training.global_batch_size=17")
    done = subprocess.run(
        command(*sweep, *wide, *batch, "--retry-smaller"),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "out of memory; again with training.micro_batch_size=1" in done.stdout
    (state,) = states(tmp_path).values()
    assert (state["state"], state["attempts"], state["micro_batch_size"]) == ("done", 2, 1)
    written = record(tmp_path / "gqa_1.5B_smoke")
    assert (written["micro_batch_size"], written["global_batch_size"]) == (1, 17)
    assert written["config"]["training"]["micro_batch_size_asked"] == 17
    assert "gqa_1.5B (smoke) (micro-batch 1 for 17)" in done.stdout
    # It is complete, and what was asked for is known: nothing is left to do.
    again = efficientbench(*sweep, *wide, *batch, "--retry-smaller")
    assert (again.returncode, "complete, kept" in again.stdout) == (0, True)


@pytest.mark.proof
def test_an_automatic_micro_batch_is_tested_before_the_runs(sweep: Words, tmp_path: Path) -> None:
    """17 sequences fit by plan into this machine, and not into the address space that the ranks may have."""
    short = ("training.steps=2", "measurement.warmup_steps=0", "measurement.min_steps=2")
    wide = ("model.ffn_hidden_size=8192", "training.seq_len=512", "training.global_batch_size=17", *short)
    done = subprocess.run(
        command(*sweep, *wide, "training.micro_batch_size=auto"),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if "for auto" in line]
    assert told == [
        "micro-batch 17 for auto: tried with gqa_1.5B_smoke, does not fit",
        "micro-batch 1 for auto: tried with gqa_1.5B_smoke, fits",
    ]
    written = record(tmp_path / "gqa_1.5B_smoke")
    assert (written["micro_batch_size"], written["config"]["training"]["micro_batch_size"]) == (1, 1)
    assert not (tmp_path / "gqa_1.5B_smoke" / "micro_batch").exists()
    # A later run of the suite takes the number and tries nothing.
    later = efficientbench("run", "mqa_1.5B", *sweep[3:], *wide, "training.micro_batch_size=auto")
    assert (later.returncode, "for auto" in later.stdout) == (0, False), later.stdout + later.stderr
    assert record(tmp_path / "mqa_1.5B_smoke")["micro_batch_size"] == 1
