"""Plans of generation: bounds against the roofline by hand, what fits, and what is n/a."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from efficientbench.cli.app import app
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.config.quantization import Quantization
from efficientbench.costs.generation import generation_bytes
from efficientbench.costs.model import count_parameters
from efficientbench.costs.quantization import quantized_matrices
from efficientbench.devices.quantized import form_of
from efficientbench.metrics.sensors.hardware import device_rates
from efficientbench.planning.generation_plan import plan_generation, print_generation, runtime_bytes

H100 = device_rates("H100 SXM", "bf16")


def test_times_match_the_roofline() -> None:
    config = resolve("gqa_1.5B")
    [alone, many] = plan_generation(config, [2048], [1, 4096], H100).bounds
    assert alone.prefill_s is not None
    assert alone.decode_s is not None
    assert many.decode_s is not None
    # A prompt is computed at the peak; one row's step moves the weights and the cache.
    assert alone.prefill_s == pytest.approx(alone.prefill_flops / 989.5e12, rel=0.05)
    assert alone.decode_s == pytest.approx((alone.weight_bytes + alone.cache_bytes) / 3.35e12, rel=1e-9)
    # With so many rows the layers' products take longer than their weights.
    assert many.decode_s > (many.weight_bytes + many.cache_bytes) / 3.35e12


def test_architectures_differ_where_they_were_designed_to() -> None:
    plans = {name: plan_generation(resolve(f"{name}_1.5B"), [16_384], [64], H100) for name in ("gqa", "mqa", "nsa")}
    times = {name: plan.bounds[0].decode_s or 0 for name, plan in plans.items()}
    assert times["nsa"] < times["mqa"] < times["gqa"]
    assert plans["gqa"].largest[65_536] < plans["mqa"].largest[65_536]


@pytest.mark.parametrize("name", ["gqa_1.5B", "mla_1.5B", "nsa_1.5B", "moe_1.5Bx8"])
def test_the_largest_batch_fits_and_a_larger_one_does_not(name: str) -> None:
    config = resolve(name)
    batch = plan_generation(config, [], [], H100).largest[4096]
    needed = [
        runtime_bytes(H100) + generation_bytes(config.model, 4096, 0, rows, "bf16") for rows in (batch, batch + 1)
    ]
    assert needed[0] <= 80e9 < needed[1]


def test_a_model_that_does_not_fit_has_no_batch() -> None:
    assert plan_generation(resolve("gqa_3B"), [], [], replace(H100, memory_bytes=4e9)).largest[1024] == 0


def test_unknown_figures_of_a_plan_have_a_reason(tmp_path: Path) -> None:
    plan = plan_generation(resolve("gqa_1.5B"), [128], [1], replace(H100, memory_bytes=None))
    assert plan.largest == {}
    assert plan.missing["a batch of 1,024 tokens"] == "the device's name does not settle how much memory it has"
    with (tmp_path / "plan").open("w+") as file:
        print_generation([resolve("learnable_absolute_1.5B")], [128, 2048], [1], None, Console(file=file, width=200))
        file.seek(0)
        text = " ".join(file.read().split())
    assert "n/a learnable_absolute_1.5B, a prompt of 2,048 tokens: the model has 2,048 positions" in text
    assert "times, largest batch: n/a; --device NAME, like --device 'H100 SXM', gives them" in text


def test_the_command_plans_the_whole_matrix() -> None:
    words = ["plan", "--all", "--generate", "--device", "H200 SXM", "--prompt-tokens", "4096", "--batch", "4"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    # The FLOPs of a step, which has a token of each row.
    assert "step GFLOP" in done.output
    hybrids = [run.name for run in load_matrix().all_runs if run.suite == "hybrids"]
    for name in ("gqa_0.5B", "mla_3B", "nsa_1.5B", "moe_1.5Bx8", *hybrids):
        assert sum(line.startswith(f"{name} ") for line in done.output.splitlines()) == 2
    assert "no figures of vLLM's or SGLang's" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "1,none"], "--batch: '1,none' is no list of numbers above 0, like 1,8"),
        (["--prompt-tokens", "0"], "--prompt-tokens: '0' is no list of numbers above 0"),
        (["--world", "8"], "--generate is about one device: leave --world out"),
        (["--weights", "int4"], "--weights goes with --generate and --device NAME"),
        (["--all", "--matrix", "mine.yaml"], "--all is about the shipped matrix: leave --matrix out"),
    ],
)
def test_a_mistake_in_generation_options_is_named(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["plan", "gqa_1.5B", "--generate", *words])
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


def test_fewer_bits_read_their_bytes_and_leave_more_of_the_memory() -> None:
    """A step of one row at short context is bound by its weights: times go with their bytes."""
    config = resolve("gqa_1.5B")
    int4 = form_of(Quantization(weights="int4"), "cuda", "bf16")
    full, packed = (plan_generation(config, [128], [1], H100, each) for each in (None, int4))
    one, other = full.bounds[0], packed.bounds[0]
    # All matrices but the embedding: 4 bits, and for 128 of them a scale and an offset of 16 bits.
    counted = count_parameters(config.model)
    rounded = sum(
        stack.copies * stack.repeats * sum(stack.heights) * stack.inputs
        for stack in quantized_matrices(config.model).values()
    )
    saved = config.model.layers * rounded * (2 - 0.5 - 4 / 128)
    assert rounded * config.model.layers < counted.total
    assert one.weight_bytes - other.weight_bytes == pytest.approx(saved, rel=0.01)
    assert (one.decode_s or 0) - (other.decode_s or 0) == pytest.approx(saved / 3.35e12, rel=0.01)
    assert packed.largest[4096] > full.largest[4096]
    assert (packed.name, other.cache_bytes, other.decode_flops) == (
        "gqa_1.5B int4_g128",
        one.cache_bytes,
        one.decode_flops,
    )


def test_the_command_plans_each_width() -> None:
    words = ["plan", "gqa_1.5B", "--generate", "--device", "H100 SXM", "--weights", "none,int8,int4"]
    done = CliRunner().invoke(app, [*words, "--prompt-tokens", "128", "--batch", "1"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    rows = [line.split()[:2] for line in done.output.splitlines() if line.startswith("gqa_1.5B ")]
    assert rows[:3] == [["gqa_1.5B", "128"], ["gqa_1.5B", "int8"], ["gqa_1.5B", "int4_g128"]]
    assert "generate --measure says" in " ".join(done.output.split())


@pytest.mark.parametrize("option", ["--prompt-tokens", "--batch"])
def test_sizes_without_generation_are_refused(option: str) -> None:
    done = CliRunner().invoke(app, ["plan", "gqa_1.5B", option, "8"])
    assert done.exit_code == 2
    assert "--prompt-tokens and --batch go with --generate" in " ".join(done.output.replace("│", " ").split())


def test_runs_that_reject_an_override_are_named() -> None:
    sizes = ("--prompt-tokens", "128", "--batch", "1")
    words = ["plan", "--all", "--generate", "model.attention.query_groups=1", *sizes]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert any(line.startswith("gqa_0.5B ") for line in lines)
    assert any(line.startswith("mla_0.5B: ") for line in lines)
