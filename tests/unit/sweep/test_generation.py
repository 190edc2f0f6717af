"""Generation in sweeps: the command that measures it, and when it is done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import outside
from support.generated import failed_row, generation
from typer.testing import CliRunner

from efficientbench.basics.errors import ConfigError
from efficientbench.cli.app import app
from efficientbench.config.load import resolve
from efficientbench.config.quantization import Quantization, split_quantization
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
    given = {"group": 64, "symmetric": False}
    widths = tuple(Quantization.model_validate({"weights": weights, **given}) for weights in ("int8", "int4"))
    task = TrainingTask("gqa", ("run",), folder, generates=True, widths=widths)
    keys = ("quantization.group=64", "quantization.symmetric=False")
    assert task.generation_arguments[-4:] == ("--weights", "none,int8,int4", *keys)
    assert split_quantization("int4", keys)[0] == widths[1]
    assert replace(task, widths=(Quantization(weights="int8"),)).generation_arguments[-2:] == ("--weights", "none,int8")
    for name in ("", "quantized/int8_g64_asymmetric", "quantized/int4_g64_asymmetric"):
        assert not has_generated(folder, task.widths)
        write_generation(generation("gqa"), tmp_path / name / GENERATION_NAME)
    assert has_generated(folder, task.widths)


def test_a_width_that_cannot_be_measured_is_refused_before_any_training(tmp_path: Path) -> None:
    words = ["sweep", "--only", "gqa_0.5B", "--smoke", "device=cpu", f"output={tmp_path}", "--generate", "--weights"]

    def refused(*more: str) -> str:
        with pytest.raises(ConfigError) as error:
            CliRunner().invoke(app, [*words, *more], catch_exceptions=False)
        return str(error.value)

    assert "--weights fp8 with device=cpu: a CPU has no products in fp8" in refused("int8,fp8")
    assert "quantization.group=64: --weights int8 with device=cpu" in refused("int8,int4", "quantization.group=64")
    assert "quantization.group=64: goes with --weights" in refused("none", "quantization.group=64")
    assert not any(tmp_path.iterdir())
