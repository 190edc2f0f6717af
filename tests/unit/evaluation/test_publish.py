"""Where the figures of an evaluation go: its own file and the record of its run, which nothing else of it changes."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console
from support.synthetic_runs import gpu_run

from efficientbench.basics.checksum import with_checksum
from efficientbench.evaluation.results import publish
from efficientbench.evaluation.task import Summary
from efficientbench.metrics.records.record import read_record, write_record


def published(folder: Path, task: str, step: int, **figures: float | None) -> str:
    """What `publish` prints of a task of a run's folder."""
    (folder / "evaluation").mkdir(exist_ok=True)
    shown = io.StringIO()
    summary = Summary(figures, {name: "no data" for name, value in figures.items() if value is None})
    publish(folder, {"task": task, "step": step, "settings": {}}, 3, summary, Console(file=shown, soft_wrap=True))
    return shown.getvalue()


def test_the_record_has_the_last_figures_of_each_task(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(gpu_run("gqa", "1.5B"), path)
    before = json.loads(path.read_text())
    assert before["evaluations"] == []
    published(tmp_path, "mmlu", 20, accuracy=0.5)
    published(tmp_path, "loss", 10, loss=2.25, bits_per_byte=None)
    assert published(tmp_path, "mmlu", 30, accuracy=0.75) == "mmlu: accuracy 0.75\n"
    # A file that is none costs nothing.
    (tmp_path / "evaluation" / "damaged.json").write_text("{")
    published(tmp_path, "core", 20, core=None)
    wanted = [
        {"task": "loss", "step": 10, "figures": {"loss": 2.25, "bits_per_byte": None}},
        {"task": "core", "step": 20, "figures": {"core": None}},
        {"task": "mmlu", "step": 30, "figures": {"accuracy": 0.75}},
    ]
    assert json.loads(path.read_text()) == with_checksum({**before, "evaluations": wanted})
    assert [each.task for each in read_record(path).evaluations] == ["loss", "core", "mmlu"]


def test_an_unreadable_record_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text('{"schema_version": 2}')
    shown = published(tmp_path, "loss", 10, loss=2.25)
    assert "warning: the evaluation was not added to the record: " in shown
    assert "written in schema version 2; this program reads 3" in shown
    assert shown.endswith("loss: loss 2.25\n")
    assert path.read_text() == '{"schema_version": 2}'


def test_an_imported_model_has_no_record(tmp_path: Path) -> None:
    published(tmp_path, "loss", 0, loss=2.25)
    assert not (tmp_path / "record.json").exists()
    assert json.loads((tmp_path / "evaluation" / "loss.json").read_text())["figures"] == {"loss": 2.25}
