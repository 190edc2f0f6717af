"""The command line on the simulated NPU, as a user starts it; the stand-in for torch_npu is found on PYTHONPATH alone.

What this proves and what it does not stands in `tests/replicas/simulated_npu/torch_npu/__init__.py`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.chat_rows import write_chat_tasks
from support.command_line import ROOT, TINY, Finished, efficientbench, losses, record
from support.core_bundle import write_bundle

from efficientbench.metrics.records.generation.generation import read_generation
from efficientbench.model.kernels import cross_entropy, weight_gradient

SIMULATED = ROOT / "tests" / "replicas" / "simulated_npu"
NPU = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SIMULATED)]), "SIMULATED_NPUS": "1"}
# float32 sums in another order, over six steps.
RELATIVE = 1e-5


@pytest.fixture
def on_npu(tmp_path: Path, cache: str) -> Callable[..., Finished]:
    """`on_npu("key=value", …, chip=…, devices=…)` runs the smallest model on simulated NPUs."""

    def run(*overrides: str, chip: str = "Ascend910B2", devices: int = 1, **environment: str) -> Finished:
        words = ("run", "gqa_1.5B", "--smoke", f"output={tmp_path}", f"data.cache={cache}", *TINY, "device=npu")
        done = efficientbench(
            *words,
            *overrides,
            **{**NPU, "SIMULATED_NPU": chip, "SIMULATED_NPUS": str(devices), **environment},
        )
        return Finished(tmp_path / "gqa_1.5B_smoke", done)

    return run


@pytest.mark.proof
def test_two_simulated_npus_have_the_losses_of_the_cpu(
    on_npu: Callable[..., Finished], train: Callable[..., Finished]
) -> None:
    expected = train()
    run = on_npu("parallel.dp=2", devices=2)
    assert run.done.returncode == 0, run.done.stdout + run.done.stderr
    assert run.done.stdout.rstrip().endswith(f"efficientbench share {run.folder}")
    assert losses(run.folder) == pytest.approx(losses(expected.folder), rel=RELATIVE)
    content = record(run.folder)
    assert content["validation_loss"] == pytest.approx(record(expected.folder)["validation_loss"], rel=RELATIVE)
    found = (content["device_name"], content["devices"], content["fallback_kernels"])
    assert found == ("Ascend910B2", 2, {})
    assert content["kernels"] == {
        "attention": "torch_npu npu_fusion_attention",
        "cross_entropy": cross_entropy.NAME,
        "norm": "torch_npu npu_rms_norm",
        "rope": "torch_npu npu_rotary_mul",
        "swiglu": "torch_npu npu_swiglu",
        "weight_gradient": weight_gradient.WIDE,
    }


@pytest.mark.proof
def test_the_first_generation_trains_in_fp16_on_torchs_operators_and_a_310p_generates_in_it(
    on_npu: Callable[..., Finished],
) -> None:
    run = on_npu("training.dtype=fp16", chip="Ascend910PremiumA")
    assert run.done.returncode == 0, run.done.stdout + run.done.stderr
    content = record(run.folder)
    found = (content["dtype"], content["kernels"]["attention"], sorted(content["fallback_kernels"]))
    assert found == ("fp16", "torch scaled_dot_product_attention", ["attention", "norm", "rope", "swiglu"])
    words = ("generate", str(run.folder), "--prompt", "def main(", "--max-new-tokens", "24")
    texts = [
        efficientbench(*words, expect=0, **NPU, SIMULATED_NPU=chip).stdout
        for chip in ("Ascend910PremiumA", "Ascend310P3")
    ]
    assert texts[0] == texts[1]
    assert texts[0].startswith("def main(")
    assert len(texts[0]) > len("def main(") + 10


@pytest.mark.proof
@pytest.mark.parametrize(
    ("chip", "reason"),
    [
        ("Ascend910A", "training.dtype=bf16: Ascend910A has no bf16 arithmetic: add training.dtype=fp16"),
        ("Ascend310P3", "device=npu cannot be used here: Ascend310P3 is made for inference and cannot train"),
    ],
)
def test_a_dtype_that_a_chip_lacks_is_refused_before_anything_starts(
    chip: str, reason: str, on_npu: Callable[..., Finished]
) -> None:
    run = on_npu("training.dtype=bf16", chip=chip)
    assert (run.done.returncode, run.folder.exists()) == (2, False)
    assert reason in run.done.stderr
    assert "Traceback" not in run.done.stderr


@pytest.mark.proof
def test_generated_text_matches_the_cpu(train: Callable[..., Finished], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(train().folder, folder)
    words = ("generate", str(folder), "--prompt", "def main(", "--max-new-tokens", "24")
    expected = efficientbench(*words, expect=0).stdout
    for chip in ("Ascend910B2", "Ascend310P3"):
        assert efficientbench(*words, expect=0, **NPU, SIMULATED_NPU=chip).stdout == expected
    sizes = ("--measure", "--prompt-tokens", "8", "--batch", "1", "--max-new-tokens", "3", "--repeats", "2")
    efficientbench("generate", str(folder), *sizes, expect=0, **NPU, SIMULATED_NPU=chip)
    measured = read_generation(folder / "generation.json")
    assert (measured.device_name, [row.failure for row in measured.rows]) == (chip, [None])


@pytest.mark.proof
def test_a_310p_answers_in_chat_though_it_cannot_train(chat_run: Path) -> None:
    words = ("chat", str(chat_run), "-p", "7??", "--temperature", "2", "--seed", "5", "--max-new-tokens", "8")
    answers = [
        efficientbench(*words, expect=0, **NPU, SIMULATED_NPU=chip).stdout for chip in ("Ascend310P3", "Ascend910B2")
    ]
    assert answers[0] == answers[1] != "\n"


def scored(path: Path) -> dict[str, dict[str, Any]]:
    """The lines of a file of results by their items."""
    return {line["item"]: line for line in map(json.loads, path.read_text().splitlines()[1:])}


def on_both(run: Path, tasks: tuple[str, ...], data: Path, tmp_path: Path, *words: str) -> None:
    """Evaluate a run on the CPU and on a simulated NPU: item by item the losses, answers and verdicts are the same."""
    found = []
    for device in ("cpu", "npu"):
        folder = tmp_path / device
        shutil.copytree(run, folder)
        asked = ("evaluate", str(folder), "--tasks", ",".join(tasks), "--data", str(data), *words)
        efficientbench(*asked, expect=0, **(NPU if device == "npu" else {}))
        found.append({task: scored(folder / "evaluation" / f"{task}.jsonl") for task in tasks})
        assert json.loads((folder / "evaluation" / f"{tasks[0]}.json").read_text())["device"] == device
    on_cpu, on_npu = found
    for task, items in on_cpu.items():
        assert items.keys() == on_npu[task].keys()
        for name, line in items.items():
            other = on_npu[task][name]
            for part in ("prompt_sha256", "answer", "right", "samples"):
                assert line.get(part) == other.get(part)
            # A choice without a token of its own has no loss.
            theirs = [None if loss is None else pytest.approx(loss, rel=RELATIVE) for loss in other["losses"] or ()]
            assert (line["losses"] or []) == theirs


@pytest.mark.proof
def test_scores_of_items_match_the_cpu(train: Callable[..., Finished], tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", ("jeopardy", "copa", "winogrande"))
    on_both(train().folder, ("core", "loss", "position_loss"), tmp_path / "bundle", tmp_path)


@pytest.mark.proof
def test_answers_to_questions_match_the_cpu(chat_run: Path, tmp_path: Path) -> None:
    tasks = ("mmlu", "gsm8k", "passkey")
    data = write_chat_tasks(tmp_path / "data", tasks[:2], 3)
    sampled = ("--samples", "2", "--temperature", "1.0", "--max-new-tokens", "8", "--lengths", "512", "--limit", "2")
    on_both(chat_run, tasks, data, tmp_path, *sampled)


@pytest.mark.proof
def test_an_evaluation_releases_its_memory(on_npu: Callable[..., Finished], tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", ("copa",))
    asked = ("evaluation.core_every=3", f"evaluation.core_data={tmp_path / 'bundle'}", "evaluation.core_limit=12")
    noted = tmp_path / "emptied"
    # With a peak that is given, none is measured, which would empty the cache too.
    run = on_npu(*asked, "measurement.peak_flops=1e14", SIMULATED_NPU_EMPTIED=str(noted))
    assert run.done.returncode == 0, run.done.stdout + run.done.stderr
    # After each of the two evaluations in six steps.
    assert len(noted.read_bytes()) == 2
