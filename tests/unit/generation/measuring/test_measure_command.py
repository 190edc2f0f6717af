"""Measuring generation from the command line: what is refused, what becomes a row, and what an interruption leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from support.configs import tiny
from typer.testing import CliRunner

from efficientbench.basics.errors import ConfigError, GenerationError
from efficientbench.cli.app import app
from efficientbench.cli.generate import numbers
from efficientbench.config.matrix import MATRIX
from efficientbench.config.quantization import Quantization
from efficientbench.costs.generation import generation_bytes, largest_batch
from efficientbench.devices.quantized import form_of
from efficientbench.generation.measuring import measure as measuring
from efficientbench.generation.measuring import measure_command
from efficientbench.generation.measuring.measure_command import Target, measure_run, target
from efficientbench.generation.memory import Case, batch_that_fits, too_large
from efficientbench.generation.open_run import in_one_process
from efficientbench.metrics.records.generation.generation import read_generation
from efficientbench.running.output_folder import OutputFolder

SAMPLING = (["--temperature", "0.8"], ["--top-k", "5"], ["--top-p", "0.9"], ["--seed", "3"])
CASES = [Case(4, 1, 3), Case(4, 2, 3), Case(8, 1, 3)]


def test_lists_of_sizes_are_parsed_or_refused() -> None:
    assert numbers("--batch", "8, 1,8") == [8, 1]
    for text in ("", "1,", "0", "-1", "x"):
        with pytest.raises(typer.BadParameter, match="is no list of numbers above 0"):
            numbers("--batch", text)
    with pytest.raises(typer.BadParameter, match="which only --measure takes"):
        numbers("--batch", "1,8", most=1)


def test_the_largest_batch_is_the_last_whose_estimate_fits_the_memory() -> None:
    config = tiny("gqa_1.5B")
    free_bytes = generation_bytes(config.model, 4, 3, 5, "fp32")
    assert largest_batch(config.model, 4, 3, "fp32", free_bytes) == 5
    assert largest_batch(config.model, 4, 3, "fp32", free_bytes - 1) == 4
    assert too_large(config, Case(4, 5, 3), free_bytes, None) is None
    message = too_large(config, Case(4, 6, 3), free_bytes, None)
    assert message is not None
    assert "--batch 5 would fit" in message
    # The device may be full before the formulas say so.
    assert batch_that_fits(config, Case(4, 3, 3), free_bytes, None) == "--batch 2 would fit"
    none = too_large(config, Case(4, 1, 3), 10, None)
    assert none is not None
    assert "not even one sequence fits" in none


@pytest.fixture
def found(single_rank: None, tmp_path: Path) -> Target:
    from efficientbench.model.gpt import build_stages

    config = tiny("learnable_absolute_1.5B", "model.position.max_seq_len=8", "training.seq_len=8", "device=cpu")
    import torch

    [model] = build_stages(config, torch.device("cpu"))
    return Target(model.eval(), config, "random", OutputFolder(tmp_path / config.name))


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    real = measuring.Setting
    monkeypatch.setattr(measuring, "Setting", lambda *given: real(*given, least_s=0.0))


def test_a_combination_that_cannot_be_measured_is_a_row_with_a_reason(
    found: Target, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick(monkeypatch)
    monkeypatch.setenv("COLUMNS", "240")
    assert measure_run(found, CASES, 1) == 0
    record = read_generation(found.folder.generation)
    assert (record.status, record.weights, record.dtype) == ("completed", "random", "fp32")
    assert "torch matmuls over the cache" in record.decode_path
    assert [row.failure is None for row in record.rows] == [True, True, False]
    assert "the model has 8 positions" in (record.rows[2].failure or "")
    printed = capsys.readouterr().out
    assert "the model has 8 positions" in printed
    assert "efficientbench: one static batch" in printed
    assert measure_run(found, CASES[2:], 1) == 1


def test_a_batch_for_which_quantized_weights_leave_room_is_measured(
    found: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from efficientbench.model.quantize import quantize

    quick(monkeypatch)
    form = form_of(Quantization(weights="int8"), "cpu", "fp32")
    quantize(found.model, found.config.model, form)
    room = generation_bytes(found.config.model, 4, 3, 2, "fp32", form=form)
    assert room < generation_bytes(found.config.model, 4, 3, 1, "fp32")
    monkeypatch.setattr(measure_command, "usable_bytes", lambda device: room)
    assert measure_run(replace(found, form=form), [Case(4, 2, 3), Case(4, 3, 3)], 1) == 0
    fits, larger = read_generation(found.folder.generation).rows
    assert fits.failure is None
    assert "--batch 2 would fit" in (larger.failure or "")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory at batch 2: CUDA out of memory"),
        (GenerationError("prompt 2, new token 1: the largest logit is nan"), "prompt 2, new token 1"),
    ],
)
def test_a_failed_row_does_not_affect_other_rows(
    error: Exception, reason: str, found: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    real = measuring.measure

    def fail_second(setting: Any, case: Case) -> Any:
        if case.batch == 2:
            raise error
        return real(setting, case)

    monkeypatch.setattr(measuring, "measure", fail_second)
    assert measure_run(found, CASES[:2], 1) == 0
    first, second = read_generation(found.folder.generation).rows
    assert first.failure is None
    assert reason in (second.failure or "")


@pytest.mark.parametrize("kind", ["InternalTorchDynamoError", "FailOnRecompileLimitHit", "AssertionError"])
def test_a_step_that_cannot_be_compiled_is_a_row_with_a_reason(
    kind: str, found: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo import exc

    def untraceable(setting: Any, case: Case) -> Any:
        assert setting.compiled
        raise getattr(exc, kind, AssertionError)("Data-dependent branching\n  Explanation: more")

    monkeypatch.setattr(measuring, "measure", untraceable)
    assert measure_run(found, CASES[:1], 1, compiled=True) == 1
    record = read_generation(found.folder.generation)
    assert record.rows[0].failure == "torch.compile failed: Data-dependent branching"
    assert record.steps == "compiled"
    assert record.decode_path.startswith("a step by torch.compile, with a graph for each power of two")
    experts = Target(found.model, tiny("moe_1.5Bx8"), "random", found.folder)
    with pytest.raises(ConfigError, match="--compile: which experts get tokens"):
        measure_run(experts, CASES[:1], 1, compiled=True)


def test_an_interruption_keeps_the_measured_rows(found: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    real = measuring.measure

    def interrupted(setting: Any, case: Case) -> Any:
        if case.batch == 2:
            raise KeyboardInterrupt
        return real(setting, case)

    monkeypatch.setattr(measuring, "measure", interrupted)
    assert measure_run(found, CASES, 1) == measure_command.INTERRUPTED
    record = read_generation(found.folder.generation)
    assert record.status == "stopped"
    assert len(record.rows) == 1


def test_measuring_again_sets_the_earlier_measurement_aside(found: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    assert measure_run(found, CASES[:1], 1) == 0
    first = found.folder.generation.read_text()
    with monkeypatch.context() as stopped:

        def interrupted(setting: Any, case: Case) -> Any:
            raise KeyboardInterrupt

        stopped.setattr(measuring, "measure", interrupted)
        assert measure_run(found, CASES[:1], 1) == measure_command.INTERRUPTED
    assert found.folder.generation.read_text() == first
    assert measure_run(found, CASES[1:2], 1) == 0
    assert [row.batch for row in read_generation(found.folder.generation).rows] == [2]
    [kept] = found.folder.path.glob("previous/*/generation.json")
    assert kept.read_text() == first


def test_a_named_run_keeps_its_kernel_overrides() -> None:
    config = in_one_process(tiny("gqa_1.5B", "kernels.attention=math", "kernels.fused=true", "device=cpu"))
    assert (config.kernels.attention, config.kernels.fused) == ("math", False)


def test_names_and_folders_are_distinguished(tmp_path: Path) -> None:
    cases = [
        (str(tmp_path), [], True, None, "is a folder, whose model has its size"),
        (str(tmp_path / "none"), [], False, None, "no such folder"),
        ("gqa_0.5B", [], True, 3, "with random weights: give the folder of a trained run"),
        ("gqa_0.6B", [], False, None, "gqa_0.5B"),
        ("gqa_0.5B", ["training.dtyp=fp32"], False, None, "training.dtype"),
        ("gqa_0.5B", ["parallel.tp=2"], False, None, "parallel.tp=2: generation is measured in one process"),
        ("gqa_0.5B", ["parallel.dp=8"], False, None, "set parallel.dp=1"),
    ]
    for run, arguments, smoke, step, message in cases:
        with pytest.raises(ConfigError, match=message), target(run, arguments, smoke, step, MATRIX, None):
            pass


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *((["--measure", *option], "each token is the likeliest; leave --temperature") for option in SAMPLING),
        *((option, "at temperature 0 each token is the likeliest; set --temperature") for option in SAMPLING[1:]),
        (["--repeats", "3"], "--prompt-tokens, --repeats, --compile, --smoke and --matrix need --measure"),
        (["--measure", "--prompt", "a"], "prompts are random tokens"),
    ],
)
def test_options_without_an_effect_are_refused(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["generate", "gqa_0.5B", *words])
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


def test_a_matrix_option_is_refused_for_a_folder(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    with (
        pytest.raises(ConfigError, match="--matrix: .* is a folder"),
        target(str(tmp_path), [], False, None, mine, None),
    ):
        pass
