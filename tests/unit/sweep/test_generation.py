"""Generation in sweeps: the command that measures it, and when it is done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import outside
from support.generated import failed_row, generation

from efficientbench.config.load import resolve
from efficientbench.metrics.records.generation.generation import GENERATION_NAME, write_generation
from efficientbench.running.output_folder import OutputFolder
from efficientbench.sweep.machine import Machine
from efficientbench.sweep.scheduler import has_generated
from efficientbench.sweep.selection import Request
from efficientbench.sweep.tasks import TrainingTask, build_tasks

CPU = Machine("cpu", "a CPU", ("0",), None, 400_000_000, None)


def test_each_task_of_a_generating_sweep_has_the_command_to_measure_it(tmp_path: Path) -> None:
    for repeat in (None, 2):
        asked = Request(only=("gqa",), sizes=("0.5B",), overrides=(f"output={tmp_path}",), smoke=True, repeat=repeat)
        for generate in (False, True):
            tasks = build_tasks(replace(asked, generate=generate), CPU, None)
            assert [task.generates for task in tasks] == [generate] * (repeat or 1)
            assert tasks[0].generation_arguments == ("generate", str(tasks[0].folder.path), "--measure")


def test_external_code_is_named_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside.lay_out(tmp_path, monkeypatch)
    kind = f"model.attention.kind={outside.PACKAGE}.window:VARIANT"
    config = resolve("gqa_1.5B", smoke=True, overrides=[kind, "device=cpu"])
    task = TrainingTask("window", ("run",), OutputFolder(tmp_path), config, generates=True)
    assert task.generation_arguments[-1] == kind


def test_generation_is_done_when_its_record_is_complete(tmp_path: Path) -> None:
    path = tmp_path / GENERATION_NAME
    assert not has_generated(OutputFolder(tmp_path))
    for status in ("stopped", "completed"):
        write_generation(generation("gqa", status=status), path)
        assert has_generated(OutputFolder(tmp_path)) == (status == "completed")
    write_generation(generation("gqa", rows=[failed_row(128, 8, "out of memory")]), path)
    assert not has_generated(OutputFolder(tmp_path))
    path.write_text("{")
    assert not has_generated(OutputFolder(tmp_path))


def test_generation_with_other_widths_is_done_when_each_has_its_record(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    task = TrainingTask("gqa", ("run",), folder, generates=True, widths=("int8", "int4"))
    assert task.generation_arguments[-2:] == ("--weights", "none,int8,int4")
    for path in (tmp_path, tmp_path / "quantized" / "int8", tmp_path / "quantized" / "int4_g128"):
        assert not has_generated(folder, task.widths)
        write_generation(generation("gqa"), path / GENERATION_NAME)
    assert has_generated(folder, task.widths)
