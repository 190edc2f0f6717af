"""Fine-tunings of a tiny Qwen2 on two ranks: equal under ZeRO-3 and without, saved whole, resumed exactly, recorded."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import (
    ROOT,
    TIME_LIMIT_S,
    efficientbench,
    environment,
    free_port,
    record,
    started,
)
from support.metrics_parts import make_record
from support.releases import TRANSFORMERS_5

from efficientbench.basics.cgroup import usable_cores
from efficientbench.basics.errors import ConfigError
from efficientbench.devices.cpu import CPU
from efficientbench.finetuning.examples.examples import Examples, read_examples
from efficientbench.finetuning.methods import METHODS
from efficientbench.finetuning.saved import merge
from efficientbench.metrics.records.record import write_record
from efficientbench.metrics.report.sections.rank_table import PARTS
from efficientbench.running.trained import TrainedRun

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11"),
]


STEPS = "training.steps=4,training.validate_every_steps=0,checkpoint.interval=2,data.validation_examples=24"
RELATIVE = 1e-5
"""Bound of what float32 losses may differ by."""


def name_of(method: str, stage: int, *more: str) -> str:
    return ",".join([f"{method}_tiny", f"zero.stage={stage}", *more, STEPS])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all runs."""
    output = tmp_path_factory.mktemp("tuned")
    # Of another run here in bf16, faster than any machine.
    faster = {"measured_peak_flops": 1e20, "device_name": CPU().names()[0], "devices": 1, "dp": 2}
    here = {"hostname": socket.gethostname(), "cores": usable_cores()}
    write_record(make_record({**faster, "environment": here}), output / "faster" / "record.json")
    runs = [name_of(method, stage) for method in METHODS for stage in (0, 3)]
    runs += [name_of(method, 3, "training.recompute=true") for method in ("lora", "freeze")]
    # transformers refuses bf16 with DeepSpeed on CPUs.
    runs += [name_of(method, 0, "training.dtype=bf16") for method in ("lora", "full", "pissa")]
    runs += [f"{name_of('lora', 3)},from=2", f"{name_of('full', 3)},from=2", f"{name_of('rslora', 3)},from=4"]
    runs.append(f"{name_of('lora', 3, 'label=diverged')},diverged")
    command = [sys.executable, "-m", "support.tuned_in_forks", str(output / "cache"), str(output), *runs]
    path = f"{ROOT}:{ROOT / 'tests'}"
    done = subprocess.run(
        command, env=environment(PYTHONPATH=path), capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    (output / "said.txt").write_text(done.stdout + done.stderr)
    return output


def lines(folder: Path, kind: str, file: str = "steps.jsonl") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / file).read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in lines(folder, "step")]


@pytest.mark.parametrize("method", METHODS)
def test_losses_under_zero_3_match_ddp(tuned: Path, method: str) -> None:
    plain, sharded = (losses(tuned / name_of(method, stage)) for stage in (0, 3))
    assert len(plain) == 4
    assert [line["step"] for line in lines(tuned / name_of(method, 0), "evaluation")] == [0, 4]
    assert sharded[:4] == pytest.approx(plain, rel=RELATIVE)
    # The learning rate is not 0: a run that learns nothing would be equal, too.
    assert len({round(loss, 4) for loss in plain}) == 4


@pytest.mark.parametrize("method", ["lora", "freeze"])
def test_recomputed_layers_change_no_loss(tuned: Path, method: str) -> None:
    recomputed = losses(tuned / name_of(method, 3, "training.recompute=true"))
    assert recomputed == pytest.approx(losses(tuned / name_of(method, 3))[:4], rel=RELATIVE)


@pytest.mark.parametrize("method", ["lora", "full", "pissa"])
def test_losses_in_bf16_match_float32_within_its_precision(tuned: Path, method: str) -> None:
    exact, rounded = (losses(tuned / name_of(method, 0, *more)) for more in ((), ("training.dtype=bf16",)))
    # Eight bits of mantissa: 2^-8 of a loss, as far apart as two roundings may be.
    assert rounded == pytest.approx(exact, rel=2**-8)
    content = record(tuned / name_of(method, 0, "training.dtype=bf16"))
    assert (content["measured_peak_flops"], content["mfu_of_measured_peak"]) == (None, None)
    assert "1e+20 in an earlier run on this machine" in content["unavailable"]["mfu_of_measured_peak"]


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_resumed_fine_tuning_has_the_losses_of_an_uninterrupted_one(tuned: Path, method: str) -> None:
    found, uninterrupted = (lines(tuned / name_of(method, 3), "step", file) for file in ("steps.jsonl", "whole.jsonl"))
    assert [line["step"] for line in found] == [1, 2, 3, 4]
    for whole, again in zip(uninterrupted, found, strict=True):
        assert (again["loss"], again["grad_norm"]) == pytest.approx((whole["loss"], whole["grad_norm"]), rel=1e-6)
        assert (again["learning_rate"], again["tokens_trained"]) == (whole["learning_rate"], whole["tokens_trained"])
    content = record(tuned / name_of(method, 3))
    assert content["resumed_after_steps"] == [2]
    assert sum(content[part] for part in PARTS) == pytest.approx(content["wall_s"])
    [lost] = lines(tuned / name_of(method, 3), "lost")
    assert 0 < lost["lost_s"] < content["restarts_s"] < content["wall_s"]
    # The loss before the first step is that of the first attempt.
    assert [point["step"] for point in content["finetuning"]["held_out"]] == [0, 4]
    assert [point["step"] for point in content["quality_curve"]] == [4]


def test_a_fine_tuning_that_ended_while_saving_resumes_from_its_last_step(tuned: Path) -> None:
    content = record(tuned / name_of("rslora", 3))
    assert (content["status"], content["resumed_after_steps"], content["steps_measured"]) == ("completed", [4], 0)
    assert [point["step"] for point in content["finetuning"]["held_out"]] == [0, 4]
    assert content["validation_loss"] == content["finetuning"]["held_out"][-1]["loss"]


def test_ranks_with_other_examples_stop_before_the_first_step(tuned: Path) -> None:
    said = (tuned / "said.txt").read_text()
    assert said.count("TrainingError: rank 1 has other examples or another order than rank 0") == 2
    assert not (tuned / name_of("lora", 3, "label=diverged") / "steps.jsonl").exists()


def saved_losses(folder: Path, method: str) -> tuple[float, float]:
    """Return the held-out loss of the base and of what a run saved.

    On one process, with transformers and PEFT alone, from the file that anybody would load.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    _, held_out, _, _ = read_examples(folder / "examples.npz")
    base = AutoModelForCausalLM.from_pretrained(record(folder)["finetuning"]["base_model"])
    before = plain_loss(base, held_out)
    if METHODS[method].lora is not None:
        model = PeftModel.from_pretrained(base, folder / "adapter")
    else:
        model = AutoModelForCausalLM.from_pretrained(folder / "model")
    return before, plain_loss(model, held_out)


@pytest.mark.parametrize("method", METHODS)
def test_the_saved_adapter_has_the_held_out_loss_of_the_run(tuned: Path, method: str) -> None:
    folder = tuned / name_of(method, 3)
    before, after = saved_losses(folder, method)
    curve = record(folder)["finetuning"]["held_out"]
    assert curve[0]["loss"] == pytest.approx(before, rel=RELATIVE)
    assert after == pytest.approx(curve[-1]["loss"], rel=RELATIVE)
    assert abs(after - before) > 20 * RELATIVE * before


@pytest.mark.parametrize("method", ["lora", "rslora", "dora", "pissa"])
def test_a_merged_model_has_the_held_out_loss_of_the_run(tuned: Path, method: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tuned / name_of(method, 3)
    merge(folder, tmp_path / "whole")
    _, held_out, _, _ = read_examples(folder / "examples.npz")
    found = plain_loss(AutoModelForCausalLM.from_pretrained(tmp_path / "whole"), held_out)
    assert found == pytest.approx(record(folder)["finetuning"]["held_out"][-1]["loss"], rel=RELATIVE)


@TRANSFORMERS_5
def test_a_merged_model_is_imported_and_evaluated_in_fewer_bits(tuned: Path, tmp_path: Path) -> None:
    run, text = tmp_path / "run", tmp_path / "text.jsonl"
    merge(tuned / name_of("lora", 3), tmp_path / "whole")
    efficientbench("import", str(tmp_path / "whole"), "--output", str(run), expect=0)
    text.write_text("".join(json.dumps({"text": f"import os {number} " * number}) + "\n" for number in range(1, 9)))
    for words in ((), ("--weights", "int8")):
        efficientbench("evaluate", str(run), "--text", str(text), *words, expect=0)
    whole, rounded = (
        json.loads((place / "evaluation" / "loss.json").read_text())["figures"]["loss"]
        for place in (run, run / "quantized" / "int8")
    )
    assert rounded == pytest.approx(whole, rel=0.02)
    assert rounded != whole


def test_pissas_bf16_adapter_has_the_loss_of_the_run_within_its_precision(tuned: Path) -> None:
    folder = tuned / name_of("pissa", 0, "training.dtype=bf16")
    before, after = saved_losses(folder, "pissa")
    curve = record(folder)["finetuning"]["held_out"]
    assert (before, after) == pytest.approx((curve[0]["loss"], curve[-1]["loss"]), rel=2**-8)


def plain_loss(model: Any, held_out: Examples) -> float:
    """Mean loss of the learned tokens, from whole logits."""
    import torch

    total, count = 0.0, 0
    for number in range(len(held_out)):
        ids, learned = held_out[number]
        tokens, marks = torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(learned)
        with torch.no_grad():
            logits = model.eval()(tokens[None]).logits[0, :-1].double()
        each = torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none")
        total, count = total + float(each[marks[1:]].sum()), count + int(marks[1:].sum())
    return total / count


def test_a_record_has_the_trained_parameters_and_the_examples_read(tuned: Path) -> None:
    folder = tuned / name_of("dora", 3)
    content = record(folder)
    train, _, order, _ = read_examples(folder / "examples.npz")
    # Rank 8 beside 7 layers of 4 decoder layers, and DoRA's length of each of their outputs.
    shapes = [(64, 64), (64, 32), (64, 32), (64, 64), (64, 128), (64, 128), (128, 64)]
    trained = 4 * sum(8 * (inputs + outputs) + outputs for inputs, outputs in shapes)
    assert (content["trainable_parameters"], content["finetuning"]["saved_numbers"]) == (trained, trained)
    lengths = train.lengths[order].reshape(4, 8)
    assert content["steps_measured"] == 2
    assert content["tokens"] == lengths[2:].sum()
    assert content["supervised_tokens"] == train.supervised[order].reshape(4, 8)[2:].sum()
    assert content["padding_share"] == pytest.approx(1 - lengths[2:].sum() / tokens_of_batches(train, order)[2:].sum())
    assert content["examples_per_s"] == pytest.approx(16 / (2 * content["al_s"]))
    assert content["st_samples_per_param_s"] == pytest.approx(content["examples_per_s"] / content["parameters"])
    assert content["perplexity"] == pytest.approx(math.exp(content["validation_loss"]))
    assert content["mfu"] is None
    if content["measured_peak_flops"] is None:
        # Another of the runs here happened to reach far more.
        assert "in an earlier run on this machine" in content["unavailable"]["measured_peak_flops"]
    else:
        used = content["flops_per_token"] * content["tokens_per_s"] / content["measured_peak_flops"]
        assert content["mfu_of_measured_peak"] == pytest.approx(used)
    parts = [content[part] for part in PARTS]
    assert sum(parts) == pytest.approx(content["wall_s"])
    assert min(content["evaluation_s"], content["checkpoints_s"], content["goodput"]) > 0
    assert (content["restarts_s"], content["wall_s"] <= content["duration_s"]) == (0, True)
    assert content["memory_idle_gb"] is None
    assert content["unavailable"]["memory_idle_gb"] == "the monitor starts after the model was built"
    assert (content["variant"], content["status"], content["dp"], content["devices"]) == ("dora", "completed", 2, 1)


def tokens_of_batches(train: Examples, order: np.ndarray) -> np.ndarray:
    """Return the tokens of each step with padding, as accelerate's loaders and TRL's collator give them to ranks."""
    from accelerate.data_loader import prepare_data_loader
    from torch.utils.data import DataLoader
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    collate, found = DataCollatorForLanguageModeling(pad_token_id=0), []
    for rank in (0, 1):
        examples: Any = train.rows()
        loader = DataLoader(examples, batch_size=2, sampler=order.tolist(), collate_fn=collate)
        own = prepare_data_loader(loader, num_processes=2, process_index=rank)
        # Two micro-batches of each rank make a step.
        found.append(np.array([batch["input_ids"].numel() for batch in own]).reshape(-1, 2).sum(1))
    return found[0] + found[1]


def test_a_tiny_qwen_made_on_the_spot_is_trained_and_reported(tmp_path: Path) -> None:
    places = (f"output={tmp_path}", f"cache={tmp_path / 'cache'}", "device=cpu")
    done = efficientbench("finetune", "lora_32B", "--smoke", *places, expect=0, stderr="")
    folder = tmp_path / "lora_32B_smoke"
    content = record(folder)
    assert (content["run"], content["smoke"], content["status"]) == ("lora_32B", True, "completed")
    found = losses(folder)
    assert len(found) == 20
    assert np.mean(found[-5:]) < np.mean(found[:5]) - 0.1
    assert content["finetuning"]["curriculum"]["used"] == "staged"
    assert set(content["finetuning"]["held_out"][-1]["by_level"]) == {"explain", "reasoning", "topology"}
    assert "held-out loss" in done.stdout
    told = efficientbench("report", str(tmp_path), "--paper", expect=0).stdout
    assert "LoRA" in told
    assert "Parameter-efficient fine-tuning" in (tmp_path / "paper.md").read_text()
    efficientbench("finetune", "merge", str(folder), str(tmp_path / "whole"), expect=0)
    assert (tmp_path / "whole" / "model.safetensors").is_file()
    with pytest.raises(ConfigError, match="a run is made of it by efficientbench finetune merge"):
        TrainedRun.read(folder)


def test_two_nodes_fine_tune_as_one_does(tmp_path: Path) -> None:
    words = ("finetune", "lora_tiny", "device=cpu", f"cache={tmp_path / 'cache'}", *STEPS.split(","))
    efficientbench(*words, f"output={tmp_path / 'one'}", expect=0)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    node = (*words, "dlc", "cpu_ranks=1", f"output={tmp_path / 'two'}")
    with started(*node, **place, RANK="1") as second:
        first = efficientbench(*node, **place, RANK="0")
        _, told = second.communicate(timeout=TIME_LIMIT_S)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + told
    assert losses(tmp_path / "two" / "lora_tiny") == pytest.approx(losses(tmp_path / "one" / "lora_tiny"), rel=RELATIVE)


def test_a_sweep_trains_possible_fine_tunings_and_skips_complete_ones(tmp_path: Path) -> None:
    """One process a run, which is a world of one rank; 7 examples a step are no multiple of a micro-batch of 2."""
    places = (f"output={tmp_path}/runs", f"cache={tmp_path}/cache", "device=cpu", "cpu_ranks=1", "zero.stage=0")
    axis = ("--set", "training.global_batch_size=8,7")
    words = ("sweep", "--only", "lora", "--sizes", "tiny", *axis, "--repeat", "1", *places, *STEPS.split(","))
    done = efficientbench(*words, expect=1)
    folder = tmp_path / "runs" / "lora_tiny__global_batch_size=8" / "seed_42"
    content = record(folder)
    assert (content["run"], content["status"], content["dp"]) == ("lora_tiny__global_batch_size=8", "completed", 1)
    assert "lora_tiny__global_batch_size=7__seed_42: refused (mistake): training.global_batch_size: 7 is" in done.stdout
    assert (tmp_path / "runs" / "report.md").is_file()
    again = efficientbench(*words, expect=1)
    assert "lora_tiny__global_batch_size=8__seed_42: complete, kept" in again.stdout
    assert record(folder) == content


def test_bf16_with_deepspeed_on_cpus_is_refused_in_one_line(tmp_path: Path) -> None:
    done = efficientbench("finetune", "lora_tiny", "device=cpu", f"output={tmp_path}", "training.dtype=bf16", expect=2)
    assert "transformers refuses bf16 with DeepSpeed on CPUs: take fp32, or zero.stage=0" in done.stderr


def test_a_mistake_is_reported_in_one_line_before_any_training(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"instruction": "a", "output": "b"}\n{"instruction": "a", "ouput": "b"}\n')
    places = ("device=cpu", f"cache={tmp_path / 'cache'}", f"output={tmp_path}")
    done = efficientbench("finetune", "lora_tiny", "--data", str(rows), *places, expect=2)
    assert done.stderr.startswith(f"error: {rows}:2: has the keys instruction, ouput; ")
    done = efficientbench("finetune", "lora_tiny", "--smoke", f"model={tmp_path}", *places, expect=2)
    assert done.stderr.startswith(f"error: model: {tmp_path} is neither a folder with a model")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "lora_tiny_smoke").exists()
    assert [path.name for path in (tmp_path / "lora_tiny").iterdir()] == ["lock"]
