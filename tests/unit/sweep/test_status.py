"""`status`: how far runs are, by the end of their steps, their locks, records and failures, and a sweep's queue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from efficientbench.basics.errors import MetricsError
from efficientbench.cli.app import app
from efficientbench.launchers.processes.failure import Failure
from efficientbench.running.failures import write_failure
from efficientbench.running.output_folder import OutputFolder
from efficientbench.sweep.progress import Progress, progress_of
from efficientbench.sweep.queue import Queue, State
from efficientbench.sweep.status import Status, statuses


def steps(folder: Path, *lines: Mapping[str, Any]) -> OutputFolder:
    run = OutputFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lock").touch()
    run.steps.write_text("".join(json.dumps({"kind": "step", **line}) + "\n" for line in lines))
    return run


def step(number: int, elapsed_s: float, tokens: str = "tokens_total") -> dict[str, Any]:
    return {"step": number, "loss": 7.0 - number, tokens: 100 * number, "elapsed_s": elapsed_s}


@pytest.mark.parametrize("tokens", ["tokens_total", "tokens_trained"])
def test_speed_and_time_left_are_of_the_last_steps_of_the_last_attempt(tmp_path: Path, tokens: str) -> None:
    # The first two are of an attempt that was killed after step 3; the next one repeats it, and its clock is its own.
    lines = [step(2, 90.0, tokens), step(3, 99.0, tokens), step(3, 10.0, tokens), step(4, 12.0, tokens)]
    run = steps(tmp_path, *lines, step(5, 14.0, tokens))
    assert progress_of(run) == Progress(5, 2.0, 50.0, 2.0)
    assert Progress(5, 2.0, 50.0, 2.0).words(20) == ["step 5 of 20", "50 tokens/s", "loss 2.000", "about 30 s left"]
    assert progress_of(steps(tmp_path, lines[0])) == Progress(2, 5.0, None, None)
    assert progress_of(steps(tmp_path)) is None


def test_each_run_has_a_row_and_waiting_ones_of_a_sweep_too(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    running = steps(suite / "running", step(1, 1.0), step(2, 2.0))
    running.config.write_text(json.dumps({"budget": {"steps": 10}}))
    steps(suite / "killed", step(1, 1.0))
    ended = steps(suite / "ended", step(1, 1.0), step(2, 2.0))
    ended.config.write_text(json.dumps({"steps": 2}))
    ended.record.write_text(json.dumps({"status": "completed", "tokens_per_s": 5710.4}))
    write_failure(steps(suite / "failed"), Failure("crash", "a reason"))
    queue = Queue(suite)
    queue.make()
    for name, state in (("waiting", "queued"), ("ended", "done")):
        queue.write(State(name, state, "configuration", [], str(suite / name)))  # type: ignore[arg-type]
    # A mistake that was found before the run began.
    (suite / "mistaken").mkdir()
    (suite / "mistaken" / "lock").touch()
    with running.claimed():
        found = {each.name: each for each in statuses(tmp_path)}
    speed = "100 tokens/s"
    assert found == {
        each.name: each
        for each in (
            Status("suite/running", "running", ("step 2 of 10", speed, "loss 5.000", "about 8 s left")),
            Status("suite/killed", "interrupted", ("step 1", "", "loss 6.000")),
            Status("suite/ended", "completed", ("step 2 of 2", "5,710 tokens/s", "loss 5.000")),
            Status("suite/failed", "failed", ("crash: a reason",)),
            Status("waiting", "queued", ()),
        )
    }
    assert {each.name: each.state for each in statuses(suite)}["running"] == "interrupted"


def test_a_long_name_stays_whole_on_the_line_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that grep finds it, and it can be copied."""
    monkeypatch.setenv("COLUMNS", "60")
    name = f"gqa_50M_smoke__{'base' * 20}"
    for each in (name, "gqa_50M"):
        steps(tmp_path / each, step(1, 1.0))
    lines = CliRunner().invoke(app, ["status", str(tmp_path)]).stdout.splitlines()
    assert lines == [
        f"gqa_50M{' ' * (len(name) - 5)}interrupted  step 1, loss 6.000",
        f"{name}  interrupted  step 1, loss 6.000",
    ]


def test_before_any_run_the_command_says_what_begins_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = str(CliRunner().invoke(app, ["status"]).exception)
    assert said.startswith("no run has begun here yet: efficientbench run NAME --smoke begins one")


def test_the_command_prints_a_line_for_each_run(tmp_path: Path) -> None:
    steps(tmp_path / "killed", step(1, 1.0))
    done = CliRunner().invoke(app, ["status", str(tmp_path)])
    assert (done.exit_code, done.stdout.split()) == (0, ["killed", "interrupted", "step", "1,", "loss", "6.000"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for folder, said in (("empty", "holds no run yet"), ("absent", "is missing"), ("file", "is a file; give the")):
        assert said in str(CliRunner().invoke(app, ["status", str(tmp_path / folder)]).exception)
    assert isinstance(CliRunner().invoke(app, ["status", str(tmp_path / "empty")]).exception, MetricsError)
