"""Several models measured one after another: refusals, what an interruption leaves, what is printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.generated import generation, phase, row
from support.synthetic_runs import gpu_run

from efficientbench.basics.errors import ConfigError
from efficientbench.config.matrix import MATRIX
from efficientbench.generation.measuring import measure_command as several
from efficientbench.generation.measuring.measure_command import INTERRUPTED, measure_several
from efficientbench.metrics.formulas.device_use import Disturbance
from efficientbench.metrics.records.generation.generation import write_generation
from efficientbench.metrics.records.record import write_record


def test_all_names_are_resolved_before_the_first_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(command: Sequence[str]) -> int:
        raise AssertionError(f"{command} was started")

    monkeypatch.setattr(several, "_exit_code", start)
    for run, arguments, message in (
        ("gqa_0.6B", [], "gqa_0.5B"),
        (str(tmp_path), [], "--smoke: .* is a folder"),
        ("mla_0.5B", ["parallel.tp=2"], "set parallel.tp=1"),
    ):
        with pytest.raises(ConfigError, match=message):
            measure_several(["gqa_0.5B", run], ["none"], arguments, ["--measure"], True, MATRIX)


def test_no_further_model_is_measured_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    runs = [str(tmp_path / variant) for variant in ("gqa", "mla", "mqa", "nsa")]
    for run in runs:
        write_generation(generation(Path(run).name), Path(run) / "generation.json")
    codes = {runs[0]: 0, runs[1]: 1, runs[2]: INTERRUPTED}
    monkeypatch.setattr(several, "_exit_code", lambda command: codes.pop(command[command.index("generate") + 1]))
    assert measure_several(runs, ["none"], [], ["--measure"], False, MATRIX) == INTERRUPTED
    assert codes == {}
    printed = capsys.readouterr().out
    assert "gqa_1.5B" in printed
    assert not any(f"{variant}_1.5B" in printed for variant in ("mla", "mqa", "nsa"))


def test_doubts_other_processes_and_the_training_of_the_run_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    decode = phase(0.05, 8, joules=3.0, energy_doubt="it counted 3 J [of 9]")
    prefill = phase(0.05, 1024, joules=0.1, disturbances=[Disturbance("GPU-0", 0.0, 1.0, "process 7")])
    rows = [row("gqa", 128, 1), row("gqa", 128, 8, decode=decode, prefill=prefill)]
    trained = gpu_run("gqa", "1.5B")
    write_record(trained, tmp_path / "record.json")
    write_generation(
        generation("gqa", rows=rows, config={"model": trained.config["model"]}), tmp_path / "generation.json"
    )
    monkeypatch.setattr(several, "_exit_code", lambda command: 0)
    assert measure_several([str(tmp_path)], ["none"], [], ["--measure"], False, MATRIX) == 0
    printed = capsys.readouterr().out
    assert "gqa_1.5B, prompt 128, batch 8, decode: it counted 3 J [of 9]." in printed
    assert "Another process used a device of gqa_1.5B meanwhile." in printed
    assert f"{trained.tokens_per_s:,.0f}" in printed


def test_the_exit_code_is_the_first_nonzero_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_generation(generation("gqa"), tmp_path / "generation.json")
    codes = iter((0, 1, 0))
    monkeypatch.setattr(several, "_exit_code", lambda command: next(codes))
    assert measure_several([str(tmp_path)] * 3, ["none"], [], ["--measure"], False, MATRIX) == 1


def test_each_width_of_weights_has_a_command_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Sequence[str]] = []

    def note(command: Sequence[str]) -> int:
        commands.append(command)
        return 1

    monkeypatch.setattr(several, "_exit_code", note)
    words = ["model.layers=2", "quantization.group=64"]
    assert measure_several(["gqa_0.5B"], ["none", "int4"], words, ["--measure"], True, MATRIX) == 1
    asked = [list(each[each.index("gqa_0.5B") + 1 :]) for each in commands]
    quantized = ["--weights", "int4", "quantization.group=64"]
    assert asked == [["model.layers=2", "--measure"], ["model.layers=2", *quantized, "--measure"]]


def test_every_second_repeat_is_measured_in_the_opposite_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Sequence[str]] = []

    def note(command: Sequence[str]) -> int:
        commands.append(command)
        return 1

    monkeypatch.setattr(several, "_exit_code", note)
    runs = [tmp_path / f"seed_{seed}" for seed in (10, 11, 12)]
    for run in runs:
        run.mkdir()
    widths = ["none", "int8", "int4"]
    assert measure_several(list(map(str, runs)), widths, [], ["--measure"], False, MATRIX) == 1
    asked = [each[each.index("--weights") + 1] if "--weights" in each else "none" for each in commands]
    assert asked == [*widths, *widths[::-1], *widths]
    assert [each[each.index("generate") + 1] for each in commands] == [str(run) for run in runs for _ in widths]
